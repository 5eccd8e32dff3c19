import gzip
import json

import pytest

from winnow import LLM

STREAMING = "streaming(sink=4, recent=64)"
FLAGS = ("--plan", STREAMING, "--length", 512, "--examples", 2)


def test_json_alone_on_stdout_with_full_attention_first(winnow, tiny):
    document = winnow("compare", "-m", tiny, *FLAGS, "--json").json
    assert document["complete"]
    assert document["plans"] == [row["plan"] for row in document["summary"]] == ["full", STREAMING]
    assert list(document["summary"][0]["scores"]) == ["passkey", "number", "kv", "multi_needle"]
    assert len(document["records"]) == 2 * 4 * 2
    assert {"model", "device", "dtype", "threads", "versions", "seed"} <= document.keys()


def test_an_adapter_answers_under_the_plan_that_it_was_trained_for(winnow):
    asked = ("--adapter", "needle-speed-6", "--length", 200, "--examples", 1, "--task", "passkey", "--json")
    document = winnow("compare", "-m", "needle", *asked).json
    assert [plan.partition(",")[0] for plan in document["plans"]] == ["full", "speed(cutoff=6"]
    assert winnow("compare", "-m", "needle", *asked, "--plan", "full").json["plans"] == ["full"]


def test_out_holds_the_same_document_and_the_table_is_printed(winnow, tiny, tmp_path):
    out = tmp_path / "out.json"
    result = winnow("compare", "-m", tiny, *FLAGS, "--task", "passkey", "--out", out, "--plot", tmp_path / "out.png")
    document = json.loads(out.read_text(encoding="utf-8"))
    assert [row["plan"] for row in document["summary"]] == ["full", STREAMING]
    assert f"{STREAMING}: memory" in result.out
    assert "question: What is the pass key?" in result.out
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_seed_makes_the_examples(winnow, tiny):
    def questions(seed: int) -> list[object]:
        flags = ("--length", 400, "--examples", 1, "--task", "number", "--seed", seed, "--json")
        return [record["question"] for record in winnow("compare", "-m", tiny, *flags).json["records"]]

    assert questions(1) == questions(1) != questions(2)


def test_an_own_document_shows_answers_and_fidelity_but_no_score(winnow, tiny, document):
    flags = ("--file", document, "--question", "When?", "--max-tokens", 8, "--plan", STREAMING)
    found = winnow("compare", "-m", tiny, *flags, "--json").json
    assert [record["score"] for record in found["records"]] == [None, None]
    assert [(each["plan"], each["tokens"]) for each in found["fidelity"]] == [(STREAMING, 8)]
    shown = winnow("compare", "-m", tiny, *flags).out
    assert "KL" in shown
    assert "question: When?" in shown


@pytest.mark.parametrize(("command", "part"), [("compare", "summary"), ("eval", "accuracy")])
def test_an_interrupt_keeps_the_finished_examples(winnow, tiny, tmp_path, monkeypatch, command, part):
    generate, calls = LLM.generate, []

    def interrupted(self, prompts, params=None, **keywords):
        calls.append(prompts)
        if len(calls) == 2 + 5:  # two warm-ups, two whole examples, half of the third
            raise KeyboardInterrupt
        return generate(self, prompts, params, **keywords)

    monkeypatch.setattr(LLM, "generate", interrupted)
    out = tmp_path / "out.json"
    flags = ("--plan", "full", "--plan", STREAMING, "--length", 400, "--task", "passkey", "--out", out)
    result = winnow(command, "-m", tiny, *flags)
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (result.code, document["complete"], len(document["records"])) == (130, False, 4)
    assert [each["examples"] for each in document[part]] == [2, 2]
    assert STREAMING in result.out
    assert "interrupted" in result.err


def test_tasks_read_the_folder_of_their_name_or_the_directory_itself(winnow, tiny, tmp_path):
    folder = tmp_path / "kv_retrieval"
    folder.mkdir()
    pairs = [[f"key-{i}", f"value-{i}"] for i in range(30)]
    with gzip.open(folder / "kv_30.jsonl.gz", "wt", encoding="utf-8") as lines:
        lines.write(json.dumps({"ordered_kv_records": pairs, "key": "key-3", "value": "value-3"}))
    flags = ("--task", "kv_retrieval", "--length", 400, "--examples", 1, "--json")
    for place in (tmp_path, folder):
        records = winnow("compare", "-m", tiny, "--data", place, *flags).json["records"]
        assert [record["answers"] for record in records] == [["value-3"]]


def test_needles_can_be_hidden_in_texts_of_ones_own(winnow, tiny, tmp_path):
    flags = ("--task", "passkey", "--length", 400, "--examples", 1, "--json")
    (tmp_path / "a.txt").write_text("Nothing happens here. " * 50, encoding="utf-8")
    own = winnow("compare", "-m", tiny, "--haystack", tmp_path, *flags).json["records"][0]
    bundled = winnow("compare", "-m", tiny, *flags).json["records"][0]
    assert own["answers"] == bundled["answers"]
    assert own["token_ids"] != bundled["token_ids"]
