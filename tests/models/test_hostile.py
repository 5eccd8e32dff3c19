"""300 damaged and hostile model directories: each loads or is one line, and nothing in any of them is run."""

from collections import Counter

import pytest

from covering import marked
from forked import run_commands
from hostile import mutate
from tiny import save_tiny_model
from winnow import LLM, SamplingParams
from winnow.errors import WinnowError

FOLDERS = 300
PARTS = [(part,) for part in range(0, FOLDERS, 50)]
HARMFUL = {"link", "tensors", "pickled", "quantised", "sparse", "no_object", "layers"}  # none of these may load


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("part", marked(PARTS, PARTS[: len(PARTS) // 2]))
def test_a_damaged_directory_is_one_line_and_nothing_runs(model, tmp_path, part):
    marker, refused = tmp_path / "marker", Counter()
    for seed in range(part, part + 50):
        place = tmp_path / str(seed)
        how = mutate(model, place, seed, marker)
        try:
            done = LLM(place, device="cpu").generate([[5, 6, 7]], SamplingParams(max_tokens=2))
        except WinnowError as error:
            said, done = str(error), []
            refused[how] += 1
        except BaseException as error:
            raise AssertionError(f"{how}, seed {seed}") from error
        else:
            said = ""
        assert "\n" not in said, (seed, how)
        assert len(said) < 1000, (seed, how)
        assert said or (done[0].token_ids and how not in HARMFUL), (seed, how)
        assert not marker.exists(), (seed, how)
    assert refused.total() >= 30


def test_the_command_ends_with_one_line_in_bounded_memory(model, tmp_path):
    """A config of 16 GB, classes that would run, a million layers; a pipe that would answer yes to any question."""
    marker, commands = tmp_path / "marker", []
    for seed, how in ((14, "sparse"), (51, "code"), (70, "layers")):
        place = tmp_path / how
        assert mutate(model, place, seed, marker) == how
        commands.append(["run", "hi", "--model", str(place), "--max-tokens", "2"])
    for done in run_commands(commands, given="y\n" * 9):
        assert (done.code, done.out) == (2, ""), done.err
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
    assert not marker.exists()
