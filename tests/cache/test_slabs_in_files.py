"""Slabs in files: where units lie, what of them is in memory, and what happens where there is no room."""

import errno
import gc
import mmap
import os
import resource
import sys

import pytest
import torch

from mappings import mappings, on_disk, resident
from winnow.cache.mapped import Files, MappedSlab
from winnow.errors import CapacityError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are mapped on Linux only")
HEADS, DIM = 3, 64
SIZE = DIM * 2  # bytes of a key
UNITS = 8 * mmap.PAGESIZE // SIZE  # of a head, that fill eight pages
BYTES = 2 * HEADS * 8 * mmap.PAGESIZE


def slab_of(files, units=UNITS):
    return MappedSlab(files, HEADS, units, DIM, torch.bfloat16)


def numbered(seed, units=UNITS):
    return torch.randn(HEADS, units, DIM, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("units", [1, UNITS - 1, UNITS])
def test_the_units_of_a_head_lie_side_by_side_from_a_page_on(units, tmp_path):
    slab = slab_of(Files(str(tmp_path), 2**30), units)
    keys, values, head, unit = slab.place
    assert (keys % mmap.PAGESIZE, values % mmap.PAGESIZE, head % mmap.PAGESIZE, unit) == (0, 0, 0, SIZE)
    assert slab.keys.shape == slab.values.shape == (HEADS, units, DIM)
    assert (slab.capacity, slab.nbytes, on_disk(tmp_path)) == (units, slab.nbytes, slab.nbytes)
    assert 2 * HEADS * units * SIZE <= slab.nbytes < 2 * HEADS * (units * SIZE + mmap.PAGESIZE)


def test_files_have_no_names_and_go_with_the_last_tensor(tmp_path):
    slab = slab_of(Files(str(tmp_path), 2**30))
    keys = slab.keys
    assert (os.listdir(tmp_path), on_disk(tmp_path)) == ([], BYTES)
    assert not any(os.readlink(f"/proc/self/fd/{file}").startswith(str(tmp_path)) for file in open_files())
    del slab
    assert on_disk(tmp_path) == BYTES  # somebody looks at it yet
    del keys
    assert on_disk(tmp_path) == 0


def open_files():
    return [file for file in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{file}")]


def test_no_more_than_is_said_is_in_memory_and_nothing_is_lost(tmp_path):
    files = Files(str(tmp_path), 3 * BYTES)
    slabs = [slab_of(files) for _ in range(8)]
    assert resident(tmp_path) == 0
    for turn in range(3):
        for seed, slab in enumerate(slabs):
            keys, values = slab.run(0, UNITS)
            if turn == 0:
                keys.copy_(numbered(seed))
                values.copy_(-numbered(seed))
            assert torch.equal(keys, numbered(seed))
            assert torch.equal(values, -numbered(seed))
            assert BYTES <= resident(tmp_path) <= files.most
    files.fetch(set(slabs[:3]))
    for slab in slabs[:3]:
        slab.keys.sum(), slab.values.sum()
    assert resident(tmp_path) == files.most == sum(there for _, there, _ in mappings(tmp_path))


def test_what_is_gone_leaves_room_for_others(tmp_path):
    files = Files(str(tmp_path), 2 * BYTES)
    first, second = slab_of(files), slab_of(files)
    for slab in (first, second):
        slab.run(0, UNITS).keys.fill_(1)
    del slab, second
    gc.collect()
    third = slab_of(files)
    third.run(0, UNITS).keys.fill_(1)
    assert first in files._there  # nobody had to go


def test_the_system_is_told_which_pages_come_alone(tmp_path):
    slab = slab_of(Files(str(tmp_path), 2**30))
    [(_, _, flags)] = mappings(tmp_path)
    assert "rr" not in flags
    for apart in (True, True, False):
        slab.expect(apart=apart)
        [(_, _, flags)] = mappings(tmp_path)
        assert ("rr" in flags) is apart  # random reads


def test_a_layer_above_all_that_may_be_in_memory_is_refused(tmp_path):
    with pytest.raises(CapacityError, match=r"256 tokens in one layer take 0\.2 MiB.*resident_mib of at least 1$"):
        slab_of(Files(str(tmp_path), BYTES - 1))
    assert on_disk(tmp_path) == 0
    assert slab_of(Files(str(tmp_path), BYTES)).nbytes == BYTES


def test_no_room_on_the_disk_is_an_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CapacityError, match=f"0.2 MiB can be made in {tmp_path}: No space left.*ask for fewer tokens"):
        slab_of(Files(str(tmp_path), 2**30))
    assert os.listdir(tmp_path) == []


def test_a_limit_of_the_user_s_is_an_error(tmp_path):
    """Python ignores SIGXFSZ, so that it is one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES - 1, limits[1]))
    try:
        with pytest.raises(CapacityError, match="File too large"):
            slab_of(Files(str(tmp_path), 2**30))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert on_disk(tmp_path) == 0


def test_a_directory_that_has_gone_is_an_error(tmp_path):
    files = Files(str(tmp_path / "gone"), 2**30)
    with pytest.raises(CapacityError, match="gone: No such file or directory"):
        slab_of(files)


def test_no_units_take_no_file(tmp_path):
    slab = slab_of(Files(str(tmp_path), 0), 0)
    slab.let_go()
    assert (slab.capacity, slab.nbytes, slab.run(0, 0).units, on_disk(tmp_path)) == (0, 0, 0, 0)
