import io
import sys
from pathlib import Path

import pytest

from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.engine.engine import Engine
from winnow.engine.request import Output


def test_the_text_is_that_of_generate(winnow, tiny):
    result = winnow("run", "hello", "-m", tiny, "--max-tokens", 12)
    prompt = byte_tokenizer().apply_chat_template([{"role": "user", "content": "hello"}], add_generation_prompt=True)
    expected = LLM(tiny).generate([list(prompt["input_ids"])], SamplingParams(max_tokens=12))[0]
    assert (result.code, result.out, result.err) == (0, expected.text + "\n", "")


def test_json_is_alone_on_stdout_and_holds_what_the_run_was(winnow, tiny):
    plan = "streaming(sink=2, recent=8)"
    record = winnow("run", "hello", "-m", tiny, "--plan", plan, "--max-tokens", 5, "--json").json
    assert (record["plan"], record["complete"], record["finish_reason"]) == (plan, True, "length")
    assert len(record["token_ids"]) == record["stats"]["new_tokens"] == 5
    assert {"model", "device", "dtype", "threads", "versions"} <= record.keys()


def test_stats_go_to_stderr(winnow, tiny):
    result = winnow("run", "hello", "-m", tiny, "--max-tokens", 3, "--stats")
    assert "memory, at most" in result.err
    assert "memory" not in result.out


def test_a_file_with_a_question_is_the_document_a_blank_line_and_the_question(winnow, tiny, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Some text.\n\n", encoding="utf-8")
    flags = ("-m", tiny, "--max-tokens", 6, "--no-chat", "--json")
    asked = winnow("run", "--file", path, "--question", "What?", *flags).json
    spelled = winnow("run", "Some text.\n\nWhat?", *flags).json
    assert asked["stats"]["prompt_tokens"] == len("Some text.\n\nWhat?")
    assert asked["token_ids"] == spelled["token_ids"]


def test_the_prompt_can_come_through_a_pipe(winnow, tiny, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("héllo\n".encode())))
    piped = winnow("run", "-m", tiny, "--max-tokens", 6, "--json").json
    assert piped["token_ids"] == winnow("run", "héllo", "-m", tiny, "--max-tokens", 6, "--json").json["token_ids"]


def test_sampling_is_repeated_by_its_seed(winnow, tiny):
    def sample(seed: int) -> list[int]:
        flags = ("--temperature", 1.5, "--top-k", 50, "--seed", seed, "--max-tokens", 12, "--json")
        return winnow("run", "hello", "-m", tiny, *flags).json["token_ids"]

    assert sample(3) == sample(3) != sample(4)


def test_an_interrupt_keeps_the_text_so_far(winnow, tiny, monkeypatch):
    def follow(self, request, *arguments):
        for sample, text in enumerate(("some ", "other ")[: request.params.n]):
            yield Output(0, sample, [5], text)
            yield Output(0, sample, [6], "text")
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "follow", follow)
    shown = winnow("run", "hello", "-m", tiny)
    assert (shown.code, shown.out) == (130, "some text\n")
    record = winnow("run", "hello", "-m", tiny, "--json")
    assert (record.code, record.json["text"], record.json["complete"]) == (130, "some text", False)
    several = winnow("run", "hello", "-m", tiny, "--n", 2, "--temperature", 1, "--json")
    assert [each["text"] for each in several.json["samples"]] == ["some text", "other text"]


def test_every_sample_is_shown_with_what_was_asked_about_it(winnow, tiny):
    asked = ("run", "hello", "-m", tiny, "--n", 2, "--temperature", 1, "--seed", 3, "--max-tokens", 3)
    shown, record = winnow(*asked, "--logprobs", 1, "--stats"), winnow(*asked, "--json").json
    first, second = record["samples"]
    assert first["token_ids"] != second["token_ids"]
    assert shown.out.index(first["text"]) < shown.out.index("--- sample 2 of 2") < shown.out.index(second["text"])
    assert shown.out.count("likeliest") == 2
    assert shown.err.count("time to the first token") == 2


def test_options_have_the_defaults_of_the_library(winnow, tiny):
    short = winnow("run", "hello", "-m", tiny, "--ignore-eos", "--json").json
    assert short["stats"]["new_tokens"] == SamplingParams().max_tokens


@pytest.mark.parametrize("value", ["", "\n  \n"])
def test_an_empty_pipe_is_an_error(winnow, monkeypatch, value):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(value.encode())))
    result = winnow("run", "-m", Path("nowhere") / "at" / "all")
    assert (result.code, result.err) == (2, "error: the prompt is empty; give at least one word\n")
