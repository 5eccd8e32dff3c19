import importlib.util
import json
import shutil
import tempfile
from pathlib import Path

import pytest

from gguf_files import write_llama
from lm_eval_tasks import write_tasks

pytest.importorskip("lm_eval", reason="lm_eval is not installed (extra 'eval')")

STREAMING = "streaming(sink=2, recent=8)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks"))


def test_tasks_of_lm_eval_side_by_side(winnow, tiny, folder, tmp_path):
    out = tmp_path / "out.json"
    flags = ("harness", "choose", "answer", "-m", tiny, "--include-path", folder, "-p", STREAMING, "--out", out)
    shown = winnow("eval", *flags, "--limit", 2)
    assert shown.code == 0
    for word in ("choose", "exact_match", STREAMING, "of full", "units read"):
        assert word in shown.out
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["complete"]
    assert [run["plan"] for run in document["runs"]] == ["full", STREAMING]
    for run in document["runs"]:
        assert run["n-samples"]["choose"]["effective"] == 2
        assert run["costs"]["requests"] == 2 * 3 + 2
        assert run["config"]["limit"] == 2
        assert run["versions"].keys() == {"choose", "answer"}
    assert {(score["task"], score["metric"]) for score in document["scores"]} == {
        ("choose", "acc"),
        ("answer", "exact_match"),
    }
    found = winnow("eval", *flags, "--limit", 2, "--json").json
    assert found["scores"] == document["scores"]


def test_questions_in_the_chat_template_and_with_examples(winnow, tiny, folder):
    flags = ("harness", "choose", "-m", tiny, "--include-path", folder, "--json", "--limit", 1)
    plain = winnow("eval", *flags).json["runs"][0]
    chat = winnow("eval", *flags, "--apply-chat-template").json["runs"][0]
    shots = winnow("eval", *flags, "--num-fewshot", 1).json["runs"][0]
    assert chat["costs"]["prompt_tokens"] == plain["costs"]["prompt_tokens"] + len("<user><assistant>")
    assert shots["n-shot"]["choose"] == 1
    assert shots["costs"]["prompt_tokens"] > plain["costs"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((",",), "names no task"),
        (("choose", "--metadata", "{"), "--metadata is not JSON"),
        (("choose", "--metadata", "[1]"), "must be a JSON object"),
        (("choose", "--include-path", "nowhere"), "is not a directory"),
        (("choose", "--length", 512), "--length"),
        (("--limit", 2), "NAMES is missing"),
    ],
)
def test_options_that_do_not_fit_are_refused(winnow, flags, said):
    result = winnow("eval", "harness", *flags)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1


def test_a_task_without_its_data_is_one_line(winnow, tiny, folder):
    result = winnow("eval", "harness", "lost", "-m", tiny, "--include-path", folder)
    assert result.code == 2
    assert "task lost or its data cannot be loaded" in result.err
    assert result.err.count("\n") == 1


def test_contexts_that_were_cut_are_said(winnow, tiny, folder, tmp_path):
    model = shutil.copytree(tiny, tmp_path / "short")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 24}), encoding="utf-8")
    result = winnow("eval", "harness", "choose", "-m", model, "--include-path", folder, "--limit", 1)
    assert result.code == 0
    assert "warning: 1 of 3 contexts were too long for the model and lost their beginning" in result.err


def test_ctrl_c_keeps_the_plans_that_were_finished(winnow, tiny, folder, monkeypatch):
    met = []

    def advance(self, documents):
        met.append(documents)
        if sum(met) > 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("winnow.cli.terminal.Meter.advance", advance)
    result = winnow("eval", "harness", "choose", "-m", tiny, "--include-path", folder, "-p", STREAMING, "--json")
    assert result.code == 130
    assert not result.json["complete"]
    assert [run["plan"] for run in result.json["runs"]] == ["full"]
    assert "interrupted" in result.err


MADE = """
task: made
custom_dataset: !function made.load
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: answer
generation_kwargs: {until: ["\\n"], max_gen_toks: 2, do_sample: false, temperature: 0.0}
metric_list:
  - metric: exact_match
"""
# As lm_eval's ruler and babilong make theirs: by a tokenizer that they load themselves, and trust.
LOAD = """
from datasets import Dataset
from transformers import AutoTokenizer

def load(pretrained, **others):
    tokenizer = AutoTokenizer.from_pretrained(pretrained, trust_remote_code=True)
    tokens = len(tokenizer("abc")["input_ids"])
    return {"test": Dataset.from_list([{"question": "a" * tokens, "answer": "b"}])}
"""


def _with_code(model, place, ran):
    """A model with code of its own for its tokenizer; Winnow reads the files beside it."""
    config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoTokenizer": ["own.Own", "own.Own"]}
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    kind = "from transformers import PreTrainedTokenizerFast as Own"
    (model / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n{kind}\n", encoding="utf-8")
    return model


def test_tasks_that_load_a_tokenizer_run_no_code_of_the_model(winnow, tiny, tmp_path):
    (tmp_path / "made.yaml").write_text(MADE.lstrip(), encoding="utf-8")
    (tmp_path / "made.py").write_text(LOAD, encoding="utf-8")
    model = _with_code(shutil.copytree(tiny, tmp_path / "model"), tmp_path, tmp_path / "ran")
    result = winnow("eval", "harness", "made", "-m", model, "--include-path", tmp_path, "--json")
    assert result.code == 0, result.err
    assert result.json["runs"][0]["costs"]["requests"] == 1
    assert str(Path(tempfile.gettempdir()) / "winnow-") not in result.out  # where the tokenizer was lent from
    assert not (tmp_path / "ran").exists()


def test_tasks_that_load_a_tokenizer_find_that_of_a_gguf_file(winnow, tmp_path, monkeypatch):
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))
    write_llama(tmp_path / "small.gguf")
    (tmp_path / "made.yaml").write_text(MADE.lstrip(), encoding="utf-8")
    (tmp_path / "made.py").write_text(LOAD, encoding="utf-8")
    result = winnow("eval", "harness", "made", "-m", tmp_path / "small.gguf", "--include-path", tmp_path, "--json")
    assert result.code == 0, result.err


def test_without_lm_eval_the_extra_is_named(winnow, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("winnow.cli.evaluate_harness.find_spec", lambda name: None if name == "lm_eval" else real(name))
    result = winnow("eval", "harness", "ruler")
    assert result.code == 2
    assert result.err == "error: winnow eval harness needs lm_eval; install winnow with its extra 'eval'\n"
