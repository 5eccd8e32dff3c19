"""`winnow chat`: several turns on standard input."""

import io
import sys

import pytest

from winnow import LLM


@pytest.fixture
def talk(winnow, monkeypatch):
    """`talk("hello\\n", ...)` -> the result, and the conversations that were rendered."""
    rendered: list[list[dict[str, str]]] = []
    stock = LLM.render

    def render(llm, messages):
        rendered.append([dict(message) for message in messages])
        return stock(llm, messages)

    monkeypatch.setattr(LLM, "render", render)

    def call(typed, *arguments):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        return winnow("chat", "-m", "needle", "--max-tokens", 3, *arguments), rendered

    return call


def test_a_turn_goes_on_from_those_before(talk):
    result, rendered = talk("What is it?\nAnd then?\n", "--system", "Be brief.")
    assert result.code == 0
    first, second = rendered
    assert first == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}]
    assert second[:2] == first
    assert second[2]["role"] == "assistant"
    assert second[3] == {"role": "user", "content": "And then?"}
    assert result.out.count("\n") >= 2


def test_a_turn_computes_only_what_is_new(talk, document):
    first = [("--file", document, "--stats"), ("--file", document, "--stats", "--retain-mib", 0)]
    found = [talk("When?\nAnd then?\n", *flags)[0].err for flags in first]
    assert ["taken over" in each for each in found] == [True, False]


def test_a_document_stands_before_the_first_message_and_reset_forgets(talk, document):
    result, rendered = talk("When?\n/reset\nWhere?\n\nnever read\n", "--file", document, "--stats")
    assert result.code == 0
    assert "time to the first token" in result.err
    assert [len(messages) for messages in rendered] == [1, 1]
    for messages, asked in zip(rendered, ("When?", "Where?"), strict=True):
        assert messages[0]["content"].startswith("The ferry leaves at nine.")
        assert messages[0]["content"].endswith(f"\n\n{asked}")


def test_a_conversation_that_cannot_go_on_is_said_and_nothing_is_lost(talk):
    result, rendered = talk("x " * 40_000 + "\nhello\n")
    assert result.code == 2  # who pipes it in hears that one was not answered
    assert "error: the prompt has" in result.err
    assert len(rendered[-1]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--n", 2, "--temperature", 1), "--n 2"),
        (("--plan", "lazylm"), "lazyllm"),
        (("--logprobs", 3), "winnow run"),
        (("--stop-token-ids", 99_999_999), "token 99999999 is unknown"),
        (("--json-schema", '{"type": "foo"}'), "json_schema"),
    ],
)
def test_what_cannot_be_done_is_one_line(talk, arguments, words):
    result, rendered = talk("hello\n", *arguments)
    assert result.code == 2
    assert words in result.err
    assert not rendered  # before any message
    assert result.err.count("\n") == 1
