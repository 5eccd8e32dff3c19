"""Records: a run that is stopped anywhere goes on to what an undisturbed one has, and others are refused."""

import json

import pytest
import torch
from benchmarks.quality.arms import Arm, distinct_arms
from benchmarks.quality.measure import Adapted, Bench, check_all
from benchmarks.quality.records import Journal, merged, read_journal
from benchmarks.windows import Window

from digits import Digits
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM
from winnow.errors import InputError
from winnow.evaluation.evaluate import cases
from winnow.evaluation.fidelity import distance, log_probs_after

HEADER = {"model": "tiny", "seed": (0, 1), "typed": "a command"}
ARMS = distinct_arms(
    [
        Arm.of("streaming(sink=2, recent={1/2})"),
        Arm.of("speed(cutoff=1)"),
        Arm.of("snapkv(budget=8, window=4, chunk=None, local=0)"),
    ]
)
LENGTH = 96


@pytest.fixture(scope="module")
def llm():
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=32)


def everything(llm):
    followed = [
        Window(domain, i, "a text", tuple(range(10 + i, 10 + i + LENGTH + 4))) for i in (0, 1) for domain in "ab"
    ]
    return followed, lambda: cases(llm, [Digits()], [LENGTH], 3)


def measure(llm, path, stop=None, arms=ARMS, adapted=None):
    """As `quality run` does, up to so many records."""
    bench, (followed, ask) = Bench(llm, Journal(path, HEADER), arms, adapted or {}), everything(llm)
    check = check_all(next(ask()), followed[0], LENGTH)
    steps = [bench.refuse(LENGTH, check), bench.follow(followed, LENGTH), bench.answer(ask())]
    for count, _ in enumerate((record for step in steps for record in step), start=1):
        if count == stop:
            return
    assert stop is None


def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_file(llm, tmp_path):
    whole = tmp_path / "whole.jsonl"
    measure(llm, whole)
    wanted = whole.read_text(encoding="utf-8")
    assert len(wanted.splitlines()) == 1 + len(ARMS) * (4 + 3)
    for stop in (1, 2, 7, 16, 17, 18, 23):
        part = tmp_path / f"{stop}.jsonl"
        measure(llm, part, stop)
        with part.open("a", encoding="utf-8") as out:
            out.write('{"kind": "answer", "ar')  # what a killed process had begun to write
        measure(llm, part)
        assert sorted(part.read_text(encoding="utf-8").splitlines()) == sorted(wanted.splitlines())


def test_what_is_there_is_not_measured_again_and_other_arms_are_added(llm, tmp_path, monkeypatch):
    file = tmp_path / "a.jsonl"
    measure(llm, file, arms=ARMS[:2])
    before = file.read_text(encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("benchmarks.quality.measure.replies", None)
        patch.setattr("benchmarks.quality.measure.fidelities", None)
        measure(llm, file, arms=ARMS[:2])
    assert file.read_text(encoding="utf-8") == before
    measure(llm, file)
    after = file.read_text(encoding="utf-8")
    assert after.startswith(before)
    assert len(after.splitlines()) == 1 + len(ARMS) * 7


def test_an_arm_that_cannot_run_is_recorded_and_the_others_go_on(llm, tmp_path):
    file = tmp_path / "a.jsonl"
    measure(llm, file, arms=distinct_arms([Arm.of("locret(budget=8)"), Arm.of("speed(cutoff=1)")]))
    _, records = read_journal(file)
    [refused] = [each for each in records if each["kind"] == "refused"]
    assert (refused["arm"], refused["length"]) == ("locret(budget=8)", LENGTH)
    assert "heads" in refused["reason"]
    assert {each["arm"] for each in records if each["kind"] == "answer"} == {"full", "speed(cutoff=1)"}


def test_arms_with_an_adapter_are_compared_with_the_model_without(llm, tmp_path):
    model = tiny_model()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    other = LLM(model, tokenizer=byte_tokenizer(), prefill_chunk=32)
    file, stopped = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    arms = [*ARMS, Arm.of("full", adapter="DIR"), Arm.of("speed(cutoff=1)", "mine", "DIR")]
    adapted = {"DIR": Adapted(other, "abc")}
    measure(llm, file, arms=arms, adapted=adapted)
    _, records = read_journal(file)
    mine = [each for each in records if each["arm"] in ("full, DIR", "mine")]
    assert {(each["adapter"], each["adapter_sha256"]) for each in mine} == {("DIR", "abc")}
    assert len(mine) == 2 * 7
    measure(llm, tmp_path / "without.jsonl")
    _, without = read_journal(tmp_path / "without.jsonl")
    assert [each for each in records if "adapter" not in each] == without  # which is what they were alone
    window = everything(llm)[0][0]
    prompt, rest = list(window.ids[:LENGTH]), list(window.ids[LENGTH:])
    said = [log_probs_after(each.session(max_tokens=4), prompt, rest) for each in (llm, other)]
    wanted = distance("full", LENGTH, rest, *said)
    windows = [each for each in mine if each["kind"] == "window" and each["arm"] == "full, DIR"]
    [found] = [each for each in windows if (each["domain"], each["index"]) == (window.domain, window.index)]
    assert wanted.kl > 0
    assert (found["kl"], found["nll_full"], found["nll_plan"]) == (wanted.kl, wanted.nll_full, wanted.nll_plan)
    measure(llm, stopped, 3, arms, adapted)
    measure(llm, stopped, arms=arms, adapted=adapted)
    assert sorted(stopped.read_text().splitlines()) == sorted(file.read_text().splitlines())


def test_another_header_is_refused_but_another_command_and_machine_are_noted(tmp_path):
    file = tmp_path / "a.jsonl"
    Journal(file, HEADER)
    with pytest.raises(InputError, match=r"begun with model='tiny', and this is 'big'"):
        Journal(file, {**HEADER, "model": "big"})
    Journal(file, {**HEADER, "typed": "another"})
    Journal(file, {**HEADER, "typed": "another"})
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(line["kind"], line["typed"]) for line in lines] == [("header", "a command"), ("continued", "another")]
    moved = {**HEADER, "typed": "another", "machine": {"vectors": "none"}}
    Journal(file, moved).append(answer("full", 0, 1.0))
    with pytest.raises(InputError, match=r"begun with the machine's versions=None, and this is \{'numba': '9'\}"):
        Journal(file, {**moved, "machine": {"vectors": "none", "versions": {"numba": "9"}}})
    header, records = read_journal(file)
    assert [each.get("machine") for each in header["continued"]] == [HEADER.get("machine"), {"vectors": "none"}]
    assert [record["arm"] for record in records] == ["full"]


def answer(arm, index, score):
    return {"kind": "answer", "arm": arm, "plan": arm, "task": "t", "length": 9, "index": index, "score": score}


def test_code_that_counted_less_made_the_same_records(tmp_path):
    paths = [tmp_path / name for name in ("a", "b", "c")]
    counts = ({"rows": 3}, {"rows": 3, "held": 5}, {"rows": 4, "held": 5})
    for path, costs in zip(paths, counts, strict=True):
        Journal(path, {"model": "m"}).append({**answer("full", 0, 1), "costs": costs})
    first, more, others = [(path, *read_journal(path)) for path in paths]
    assert [record["costs"] for record in merged([first, more], ["model"])] == [counts[0]]
    with pytest.raises(InputError, match="another record"):
        list(merged([first, others], ["model"]))


def test_files_are_merged_and_contradictions_refused(tmp_path):
    paths = [tmp_path / name for name in ("a", "b", "c", "d")]
    for path, arm, score, model in zip(
        paths, ("pop", "speed", "pop", "pop"), (1, 1, 0, 1), ("m", "m", "m", "x"), strict=True
    ):
        journal = Journal(path, {"model": model, "typed": path.name})
        for each in (answer("full", 0, 1), answer(arm, 0, score)):
            journal.append(each)
    files = [(path, *read_journal(path)) for path in paths]
    assert [record["arm"] for record in merged(files[:2], ["model"])] == ["full", "pop", "speed"]
    with pytest.raises(InputError, match="another record"):
        list(merged([files[0], files[2]], ["model"]))
    with pytest.raises(InputError, match="differ in model: 'm' and 'x'"):
        list(merged([files[0], files[3]], ["model"]))
    (tmp_path / "no").write_text("[]\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds no records"):
        read_journal(tmp_path / "no")
