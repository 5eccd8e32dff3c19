"""Units in files: what is computed is what `plain` computes, in a bounded part of memory, and nothing is left."""

import errno
import os
import random
import signal
import sys
import types

import pytest
import torch

import forked
from covering import covered
from mappings import mappings, on_disk, resident
from models import small_model
from trials import plan_of, small_llm
from winnow import LLM, Plan, SamplingParams
from winnow.cache.mapped import Files, MappedSlab
from winnow.engine.bound import bound_bytes
from winnow.errors import CapacityError, PlanError
from winnow.policies.registry import POLICIES
from winnow.policies.store.mapped import Mapped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are mapped on Linux only")
PROMPT = 100
KIB, MIB = 2**10, 2**20
MOST = 3 * MIB
WIDE, DRIVEN = "llama-9-3", "gemma2"  # layers in one call of the kernel; layer by layer, with windows
EVERY = [
    plan_of(name, policy.trial)
    for name, policy in POLICIES.items()
    if policy.verb != "store" and not (policy.identity and name != "dense")
]
JOINED = [plan for plan in EVERY if not plan.keep.ragged]  # heads of different numbers lie elsewhere


@pytest.fixture(scope="module")
def text():
    source = random.Random(3)
    return [source.randrange(3, 97) for _ in range(PROMPT + 40)]


@pytest.fixture
def small(monkeypatch):
    """Parts of memory that small models do not fit into: resident_mib counts 4 KiB."""
    monkeypatch.setattr("winnow.policies.store.mapped.MIB", 4 * KIB)


@pytest.fixture
def gone(monkeypatch):
    """How often a slab has been let go."""
    count, true = [0], MappedSlab.let_go
    monkeypatch.setattr(MappedSlab, "let_go", lambda slab: (true(slab), count.__setitem__(0, count[0] + 1))[0])
    return count


def mapped(plan, folder, least=44):
    """The same plan over files, of which little more than a layer is in memory where `small` is."""
    return Plan.parse(f"{'' if plan.is_full else f'{plan} + '}mapped(path={str(folder)!r}, resident_mib={least})")


@covered(plan=JOINED, family=("llama", WIDE, "llama-wide", DRIVEN, "smollm3-sliding-wide", "gpt_oss"))
def test_to_the_bit_what_plain_computes(plan, family, text, tmp_path, small):
    llm = small_llm(family)
    expected = llm.logits(text, decode_from=PROMPT, plan=plan)
    assert torch.equal(llm.logits(text, decode_from=PROMPT, plan=mapped(plan, tmp_path)), expected)
    assert on_disk(tmp_path) == 0


@pytest.mark.parametrize("family", [WIDE, "llama"])
@pytest.mark.parametrize(
    "text_of", ["full", "quest(page=2, budget=6, dense_layers=1)", "sketch(budget=16, recent=4, lag=3)"]
)
def test_layers_are_let_go(family, text_of, text, tmp_path, small, gone):
    """Else the test above would prove nothing."""
    llm = small_llm(family)
    steps = len(text) - PROMPT
    llm.logits(text, decode_from=PROMPT, plan=mapped(Plan.parse(text_of), tmp_path))
    assert gone[0] > steps * (llm.decoder.shape.layers - 1) / 2
    gone[0] = 0
    llm.logits(text, decode_from=PROMPT, plan=mapped(Plan.parse(text_of), tmp_path, least=10_000))
    assert gone[0] == 0  # where all fits, nothing is


def test_a_kernel_call_takes_as_many_layers_as_fit(text, tmp_path, small, monkeypatch):
    llm, calls = small_llm(WIDE), []
    monkeypatch.setattr(Files, "fetch", watched(Files.fetch, calls))
    with llm.session(plan=mapped(Plan(), tmp_path, least=72), max_tokens=9) as session:
        session.feed(text)
        each = session.state.caches[0].memory.own.nbytes
        calls.clear()
        session.feed([5])
    assert 72 * 4 * KIB // each == 2
    assert [len(slabs) for slabs in calls] == [2] * (llm.decoder.shape.layers // 2)


def watched(true, calls):
    def fetch(files, wanted):
        calls.append(wanted)
        return true(files, wanted)

    return fetch


@pytest.mark.parametrize("reads", ["full", "quest(page=16, budget=64, dense_layers=0)"])
def test_the_part_in_memory_is_kept_to_while_it_runs(reads, tmp_path, monkeypatch):
    """In prefill and in decode: looked at where it is most, whenever other layers are about to come."""
    model, ids = small_model(WIDE), [5, 9, 70] * 1000
    model.config.max_position_embeddings = 4096
    llm, plan, seen, true = LLM(model, prefill_chunk=64), mapped(Plan.parse(reads), tmp_path, least=3), [], Files.fetch
    monkeypatch.setattr(Files, "fetch", lambda *given: (seen.append(resident(tmp_path)), true(*given))[1])
    with llm.session(plan=plan, max_tokens=40) as session:
        for fed in (ids, ids[:30]):
            seen.clear()
            session.feed(fed)
            assert MOST / 8 < max([*seen, resident(tmp_path)]) <= MOST
        stats, shape = session.stats, llm.decoder.shape
        assert stats.disk_bytes == stats.allocated_bytes == on_disk(tmp_path) > 2 * MOST
    assert stats.total_bytes == MOST + stats.aux_bytes
    assert stats.total_bytes <= bound_bytes(plan, shape, len(ids), 39, 64)
    assert bound_bytes(plan, shape, len(ids), 39, 64) < bound_bytes(Plan.parse(reads), shape, len(ids), 39, 64)


def test_forks_keep_to_the_part_in_memory_where_layers_are_driven(tmp_path, monkeypatch):
    """What they share and what is theirs come together, even where both are a little more than fits: one does not drive
    the other out while it is read."""
    model, seen, true = small_model("llama"), [], Files.fetch
    model.config.max_position_embeddings = 8192
    llm, plan = LLM(model, prefill_chunk=64), mapped(Plan(), tmp_path, least=1)
    monkeypatch.setattr(Files, "fetch", lambda *given: (seen.append(resident(tmp_path)), true(*given))[1])
    with llm.session(plan=plan, max_tokens=40) as session:
        session.feed([5, 9] * 2020)
        twin = session.fork()
        seen.clear()
        for each in (session, twin) * 3:
            each.feed([7])
        assert on_disk(tmp_path) > 2 * MIB
        assert MIB / 8 < max([*seen, resident(tmp_path)]) <= MIB + 64 * KIB


def test_of_what_fits_the_memory_is_that_of_plain(text, tmp_path):
    llm, params = small_llm("llama"), SamplingParams(max_tokens=9, ignore_eos=True)
    [plain] = llm.generate([text], params)
    [file] = llm.generate([text], params, plan=mapped(Plan(), tmp_path))
    assert (file.token_ids, plain.stats.disk_bytes) == (plain.token_ids, 0)
    assert file.stats.total_bytes == plain.stats.total_bytes <= file.stats.disk_bytes


def test_pages_come_alone_where_few_units_are_read(tmp_path):
    llm = small_llm(WIDE)
    plan = mapped(Plan.parse("quest(page=2, budget=6, dense_layers=1)"), tmp_path)
    with llm.session(plan=plan, max_tokens=9) as session:
        session.feed([5] * 50)
        assert not any("rr" in flags for _, _, flags in mappings(tmp_path))
        session.feed([7])
        alone = sum("rr" in flags for _, _, flags in mappings(tmp_path))
    assert alone == llm.decoder.shape.layers - 1


def test_samples_share_the_prompt_s_files(text, tmp_path, small):
    llm = small_llm(WIDE)
    params = SamplingParams(max_tokens=12, n=3, temperature=1.0, seed=0, ignore_eos=True)
    expected = [each.token_ids for each in llm.generate([text], params)]
    with llm.engine() as engine:
        engine.add(text, params, plan=mapped(Plan(), tmp_path, least=72))
        outputs, held = [], []
        while not engine.idle:
            outputs += engine.step()
            held.append(on_disk(tmp_path))
    found = {each.sample_index: each.completion for each in outputs if each.completion is not None}
    assert [found[index].token_ids for index in range(3)] == expected
    assert held[0] < max(held) < 3 * held[0]
    assert on_disk(tmp_path) == 0


def test_forks_are_independent(text, tmp_path, small):
    llm = small_llm(WIDE)
    for plan in (Plan(), mapped(Plan(), tmp_path, least=72)):
        with llm.session(plan=plan, max_tokens=9) as session:
            session.feed(text)
            twin, early = session.fork(), session.fork(at=90)
            rows = torch.cat([twin.feed([5, 6]), session.feed([7]), early.feed(text[90:92]), twin.feed([8])])
            twin.close()
            early.close()
        if plan.is_full:
            expected = rows
    assert torch.equal(rows, expected)
    assert on_disk(tmp_path) == 0


def test_an_aborted_request_gives_the_disk_back(text, tmp_path):
    with small_llm("llama").engine(max_step_tokens=20) as engine:
        number = engine.add(text, SamplingParams(max_tokens=9), plan=mapped(Plan(), tmp_path))
        engine.step()
        assert on_disk(tmp_path) > 0
        engine.abort(number)
        engine.step()
        assert on_disk(tmp_path) == 0


def no_room_after(monkeypatch, files):
    """The disk is full when so many files have been made."""
    true, made = os.posix_fallocate, []

    def reserve(*arguments):
        made.append(arguments)
        if len(made) > files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        true(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    return made


def finished(engine):
    """Completions by (request, sample)."""
    outputs = [output for output in engine.run() if output.completion is not None]
    return {(each.request_id, each.sample_index): each.completion for each in outputs}


def test_a_disk_without_room_ends_a_request_before_it_begins_and_no_other(text, tmp_path, monkeypatch):
    llm, params = small_llm(WIDE), SamplingParams(max_tokens=9, ignore_eos=True)
    [expected] = llm.generate([text], params)
    no_room_after(monkeypatch, files=2)
    with llm.engine() as engine:
        other, number = (engine.add(text, params, plan=plan) for plan in (Plan(), mapped(Plan(), tmp_path)))
        found = finished(engine)
    assert (found[other, 0].token_ids, found[other, 0].finish_reason) == (expected.token_ids, "length")
    ended = found[number, 0]
    assert (ended.finish_reason, ended.token_ids, type(ended.error)) == ("error", [], CapacityError)
    assert "No space left on device; ask for fewer tokens" in str(ended.error)
    assert on_disk(tmp_path) == 0  # although the error is held
    with pytest.raises(CapacityError, match="No space left"):
        llm.generate([text], params, plan=mapped(Plan(), tmp_path))


def test_a_disk_that_is_full_later_ends_those_who_need_more(text, tmp_path, monkeypatch):
    """Samples go on behind what they share in files of their own."""
    llm, params = small_llm(WIDE), SamplingParams(max_tokens=9, n=2, temperature=1.0, seed=0, ignore_eos=True)
    first, second = (each.token_ids for each in llm.generate([text], params))
    layers = llm.decoder.shape.layers
    made = no_room_after(monkeypatch, files=2 * layers)  # the prompt's, and one sample's
    with llm.engine() as engine:
        other, number = (engine.add(text, params, plan=plan) for plan in (Plan(), mapped(Plan(), tmp_path)))
        found = finished(engine)
    assert len(made) > 2 * layers
    ends = {each: (completion.finish_reason, completion.token_ids) for each, completion in found.items()}
    assert ends[other, 0] == ends[number, 0] == ("length", first)
    assert (ends[other, 1], ends[number, 1]) == (("length", second), ("error", second[:1]))
    assert isinstance(found[number, 1].error, CapacityError)
    assert on_disk(tmp_path) == 0


def test_a_layer_that_does_not_fit_is_refused_before_any_work(text, tmp_path, small, monkeypatch):
    llm = small_llm(WIDE)
    monkeypatch.setattr("winnow.runtime.decoder.Decoder.embed", lambda *_: pytest.fail("the model was run"))
    with pytest.raises(CapacityError, match=r"105 tokens in one layer take 0\.\d MiB.*use resident_mib of at least 1$"):
        llm.generate([text[:PROMPT]], SamplingParams(max_tokens=6), plan=mapped(Plan(), tmp_path, least=3))
    assert on_disk(tmp_path) == 0


@pytest.mark.parametrize("path", ["nowhere", "a file"])
def test_no_directory_is_refused_before_any_work(path, text, tmp_path):
    (tmp_path / "a file").touch()
    with pytest.raises(PlanError, match=f"mapped: path='{tmp_path / path}' is no directory; make it"):
        small_llm("llama").check([text], plan=mapped(Plan(), tmp_path / path))


def test_a_directory_that_takes_no_files_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PlanError, match="takes no files of this user's; give a directory that does"):
        small_llm("llama").check([text], plan=mapped(Plan(), tmp_path))


def test_a_gpu_is_refused():
    services = types.SimpleNamespace(device=torch.device("cuda", 0))
    with pytest.raises(PlanError, match="mapped: files are read by the CPU, and the model is on cuda:0; use the store"):
        Mapped().prepare(services, None)


def test_its_text_gives_it_back(tmp_path):
    plan = mapped(Plan.parse("quest"), tmp_path, least=64)
    assert Plan.parse(str(plan)) == plan
    assert (Plan.parse("mapped").store.resident_mib, Mapped.loads) == (256, ("path",))


KILLED = """
import os, sys
from tiny import tiny_model
from winnow import LLM

session = LLM(tiny_model()).session(plan=f"mapped(path={sys.argv[1]!r})", max_tokens=4)
session.feed([5] * 3000)
print(open("/proc/self/maps").read().count(sys.argv[1]), os.getpid(), flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_by_a_process_that_is_killed(tmp_path):
    process = forked.start(["-c", KILLED, tmp_path])
    files, number = map(int, process.stdout.readline().split())
    assert files == 2
    assert os.listdir(tmp_path) == []
    os.kill(number, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == []
