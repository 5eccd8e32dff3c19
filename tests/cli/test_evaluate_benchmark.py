"""`winnow eval --benchmark` on tiny files in the published formats, and tasks over a data directory."""

import gzip
import json

import pytest

RECORD = {"input": "Who sails?", "context": "The ferry. " * 300, "answers": ["Ann"], "all_classes": None}
STREAMING = "streaming(sink=4, recent=64)"


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, count in (("qasper", 3), ("trec", 1)):
        records = [RECORD | {"all_classes": ["Ann"]} for _ in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return folder


def test_one_command_gives_a_score_per_dataset_and_their_average(winnow, tiny, files):
    flags = ("eval", "benchmark", "longbench", "-m", tiny, "--data", files, "--length", 200, "--examples", 2)
    document = winnow(*flags, "-p", "full", "-p", STREAMING, "--json").json
    assert [(each["dataset"], each["plan"], each["examples"], each["cut"]) for each in document["scores"]] == [
        ("qasper", "full", 2, 2),
        ("qasper", STREAMING, 2, 2),
        ("trec", "full", 1, 1),
        ("trec", STREAMING, 1, 1),
    ]
    assert document["complete"] is True
    assert all(record["stats"]["prompt_tokens"] <= 200 < record["length"] for record in document["records"])
    shown = winnow(*flags).out
    assert all(word in shown for word in ("qasper", "trec", "average", "full"))


def test_one_dataset_has_no_average(winnow, tiny, files):
    flags = ("benchmark", "longbench", "--data", files, "--task", "trec", "--length", 200)
    shown = winnow("eval", *flags, "-m", tiny).out
    assert "trec" in shown
    assert "average\n" not in shown
    assert "qasper" not in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("longbench",), "--data"),
        (("longbrench", "--data", "FILES"), "no benchmark is called 'longbrench'"),
        (("longbench", "--data", "FILES", "--task", "passkey"), "has no dataset 'passkey'"),
        (("longbench", "--data", "FILES", "--depth", 0.5), "--depth"),
        (("longbench", "--data", "FILES", "--length", 0), "--length"),
        (("infinitebench", "--data", "FILES"), "holds no file of infinitebench"),
    ],
)
def test_bad_input_is_one_line(winnow, tiny, files, flags, message):
    result = winnow("eval", "benchmark", "-m", tiny, *(files if flag == "FILES" else flag for flag in flags))
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_malformed_line_is_named(winnow, tiny, files):
    with (files / "qasper.jsonl").open("a", encoding="utf-8") as file:
        file.write("{oops\n")
    result = winnow("eval", "benchmark", "longbench", "-m", tiny, "--data", files)
    assert result.code == 2
    assert "qasper.jsonl, line 4: not JSON" in result.err


def test_tasks_over_a_data_directory_take_a_haystack_too(winnow, tiny, tmp_path):
    story = {"task": "qa1", "question": "Where?", "answer": "hall", "facts": ["Ann is in the hall."], "supporting": [0]}
    with gzip.open(tmp_path / "babi_test_a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(story) + "\n")
    (tmp_path / "book.txt").write_text("It rained all day. " * 50, encoding="utf-8")
    flags = ("--task", "babi", "--data", tmp_path, "--length", 300, "--depth", 0.5, "--examples", 1)
    document = winnow("eval", *flags, "-m", tiny, "--json").json
    assert [each["task"] for each in document["accuracy"]] == ["babi"]
