"""How peers are spelt, how their processes are driven, and what is made of what they say."""

import json
import sys
from pathlib import Path

import pytest

from tiny import tiny_model
from winnow import LLM
from winnow.errors import CapacityError, InputError, MissingExtraError
from winnow.evaluation.compare import document_case
from winnow.evaluation.peers.base import DIRECTORY, GGUF, SOURCE, Arm
from winnow.evaluation.peers.compare import Answer, Ended, Workers
from winnow.evaluation.peers.registry import parse_pythons, peer_arms
from winnow.evaluation.peers.spelling import parse_peer
from winnow.evaluation.peers.summary import best_of, summarise_peers
from winnow.evaluation.peers.weights import Weights, weights_of

FAKE = Path(__file__).parents[1] / "fake_peer.py"
WEIGHTS = Weights({DIRECTORY: Path("model")}, "float32")


def fake(label: str, loads: str = DIRECTORY, **options: object) -> Arm:
    return Arm(label, sys.executable, FAKE, options, loads)


def test_a_spelling_holds_the_family_the_name_and_literals():
    spelt = parse_peer(" kvpress:SnapKVPress(0.75, window_size=32) ")
    assert (spelt.family, spelt.name, spelt.values) == ("kvpress", "SnapKVPress", (0.75,))
    assert spelt.parameters == {"window_size": 32}
    assert spelt.text == "kvpress:SnapKVPress(0.75, window_size=32)"
    assert (parse_peer("llama.cpp").family, parse_peer("llama.cpp").name) == ("llama.cpp", None)


def test_a_press_around_another_is_told_to_its_worker():
    [arm] = peer_arms(["kvpress:AdaKVPress(SnapKVPress(0.75, kernel_size=7), alpha_safeguard=0.1)"], {})
    assert json.loads(json.dumps(arm.options)) == {
        "press": "AdaKVPress",
        "values": [{"press": "SnapKVPress", "values": [0.75], "parameters": {"kernel_size": 7}}],
        "parameters": {"alpha_safeguard": 0.1},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm", "known: hf, kvpress, llama.cpp"),
        ("hf:quantized(nbits=", "cannot be read"),
        ("hf:quantized(nbits=bits)", "cannot be read"),
        ("hf:quantized(nbits=four(4))", "takes numbers and texts alone"),
        ("kvpress:AdaKVPress(SnapKVPress(x))", "cannot be read"),
        ("kvpress:AdaKVPress(SnapKVPress(**{}))", "cannot be read"),
        ("kvpress:AdaKVPress(a.SnapKVPress(0.5))", "cannot be read"),
        ("hf:quantised(nbits=4)", "quantized, offloaded"),
        ("hf:quantized(bits=4)", "no parameter bits; it takes nbits"),
        ("hf:offloaded(1)", "no parameter 1; it takes none"),
        ("kvpress", "kvpress:SnapKVPress(0.75)"),
        ("llama.cpp:f16", "one of 'llama.cpp', 'llama.cpp:flash', 'llama.cpp:file'"),
        ("llama.cpp:q4_0(flash=1)", "is unknown"),
        ("llama.cpp:flash(flash=True)", "is unknown"),
        ("llama.cpp:flash(cache='q8_0')", "is unknown"),
        ("llama.cpp:file(flash=True, cache='q2')", "cache is one of 'f16', 'q8_0', 'q4_0'"),
        ("llama.cpp:file(cache='q8_0')", "holds units in q8_0 with flash=True only"),
    ],
)
def test_what_no_family_has_is_refused(text, said):
    with pytest.raises(InputError, match="peer ") as raised:
        peer_arms([text], {})
    assert said in str(raised.value)


def test_a_python_is_named_by_family():
    assert parse_pythons(["hf=/a/b=c"]) == {"hf": "/a/b=c"}
    [arm] = peer_arms(["hf", "hf"], {"hf": sys.executable})
    assert (arm.label, arm.python, arm.loads) == ("hf", sys.executable, DIRECTORY)
    for wrong in ("hf", "=x", "hf="):
        with pytest.raises(InputError, match="write it like kvpress="):
            parse_pythons([wrong])
    with pytest.raises(InputError, match="there is no such program"):
        peer_arms(["hf"], {"hf": "/nowhere/python"})


def test_on_a_gguf_file_llama_cpp_is_that_file_and_its_fastest_formats_of_it():
    arms = peer_arms(["hf", "llama.cpp", "llama.cpp:bf16"], {}, on_file=True)
    assert [(arm.label, arm.loads, arm.options.get("flash")) for arm in arms] == [
        ("hf", DIRECTORY, None),
        ("llama.cpp:file", GGUF, False),
        ("llama.cpp:file(flash=True)", GGUF, True),
        ("llama.cpp:q4_0", "q4_0", False),
        ("llama.cpp:q4_0(flash=True)", "q4_0", True),
        ("llama.cpp:bf16", "bf16", False),
        ("llama.cpp:bf16(flash=True)", "bf16", True),
    ]
    assert [(arm.label, arm.loads) for arm in peer_arms(["llama.cpp"], {})] == [("llama.cpp", GGUF)]


def test_arms_of_a_gguf_file_load_that_file_and_what_is_made_of_it(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_text("weights")
    llm, said = LLM(tiny_model()), list[str]()
    llm.source = file
    arms = [fake("own", loads=SOURCE), fake("file", loads=GGUF), fake("q", loads="q4_0"), fake("q2", loads="q4_0")]
    with weights_of(llm, arms, said.append) as weights:
        assert [weights.of(arm) for arm in arms[:2]] == [str(file)] * 2
        made = Path(weights.of(arms[2]))
        assert made.read_text() == "weights as q4_0"
        assert weights.of(arms[3]) == str(made)
        assert DIRECTORY not in weights.paths
    assert said == ["llama.cpp makes q4_0 of model.gguf"]
    assert not made.parent.exists()
    with weights_of(llm, [fake("stock")]) as weights:
        assert (Path(weights.of(fake("stock"))) / "config.json").is_file()


def test_a_file_that_cannot_be_converted_is_one_error(tmp_path):
    llm = LLM(tiny_model())
    llm.source = tmp_path / "model.gguf"
    with pytest.raises(InputError, match=r"^q: no q4_0 of it"), weights_of(llm, [fake("q", loads="q4_0", stuck=True)]):
        pass


def test_a_refusal_is_raised_with_the_arms_name_before_any_work():
    for missing, kind in ((True, MissingExtraError), (False, InputError)):
        with pytest.raises(kind, match=r"^b: pip install b"):
            Workers([fake("a"), fake("b", refuse="pip install b", missing=missing)], threads=1, device="cpu")


def test_an_arm_that_crashes_is_left_out_and_the_others_go_on():
    llm = LLM(tiny_model())
    cases = [document_case([5, 6, 7], "", max_tokens=3)] * 3
    arms = [fake("good"), fake("exits", until=3, how="exit"), fake("killed", until=1, how="kill")]
    with Workers(arms, threads=1, device="cpu") as workers:
        assert workers.about["good"] == {"fake": "1.0"}
        workers.load(WEIGHTS, 8)
        told = list(workers.answer(llm, cases))
    # The first answer of each is not counted; another arm is first each time.
    assert [each.arm for each in told] == ["good", "exits", "killed", "exits", "good", "good", "exits"]
    exits, killed = (next(e for e in told if isinstance(e, Ended) and e.arm == arm) for arm in ("exits", "killed"))
    assert (exits.answers, exits.reason) == (2, "its process ended with code 3: MemoryError: no room for 9 units")
    assert (killed.answers, killed.reason) == (0, "its process was ended by SIGKILL, as where memory is short")
    assert all(each.token_ids == (7, 7, 7) and each.tpot_s == 0.5 for each in told if isinstance(each, Answer))


def test_a_crash_while_loading_is_one_error():
    arm = Arm("none", sys.executable, Path(__file__).parent / "no_such_worker.py", {})
    with pytest.raises(CapacityError, match=r"^none: its process ended with code 2: .*no_such_worker"):
        Workers([arm], threads=1, device="cpu")


def answer(arm: str, index: int, *, seconds: float, size: int, tokens: tuple[int, ...] = (1, 2, 3)) -> Answer:
    return Answer(
        arm=arm, task="kv", length=8, index=index, seed=0, depth=None, question="", answers=("1",), found=(True,),
        text="", token_ids=tokens, score=1.0, prompt_tokens=8, ttft_s=seconds, total_s=3 * seconds, cache_bytes=size,
        kept_units=None, peak_bytes=10 * size,
    )  # fmt: skip


def test_ratios_are_over_the_examples_that_both_arms_answered():
    full = [answer("full", 0, seconds=1, size=100), answer("full", 1, seconds=9, size=900)]
    other = [answer("hf", 0, seconds=2, size=50, tokens=(1, 2, 4))]
    first, second = summarise_peers([*full, *other], ["full", "hf"], ["full", "hf"])
    assert (first.arm, first.examples, second.examples) == ("full", 2, 1)
    assert second.ratios == {"full": {"ttft": 2, "tpot": 2, "tokens_per_s": 0.5, "cache": 0.5, "peak": 0.5}}
    assert first.ratios["hf"]["cache"] == 2
    assert (second.same_tokens, first.same_tokens) == (0, None)
    assert (second.tokens_per_s, second.tpot_s.median) == (0.5, 2)


def test_the_best_of_a_family_is_another_arm_in_each_figure():
    arms = {"x:a": (1, 100), "x:b": (2, 50), "y": (0.1, 1)}
    answers = [answer(arm, 0, seconds=seconds, size=size) for arm, (seconds, size) in arms.items()]
    found = best_of(summarise_peers(answers, list(arms), ["y"]), "x")
    assert {name: (each.arm, each.value) for name, each in found.items()} == {
        "ttft": ("x:a", 1),
        "tpot": ("x:a", 1),
        "tokens_per_s": ("x:a", 1),
        "cache": ("x:b", 50),
        "peak": ("x:b", 500),
    }
