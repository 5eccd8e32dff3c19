"""Conversations read from files: the tokens that inference sees, and a line number for what cannot be learnt."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import winnow
from speed_reference import upper_rows
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM
from winnow.errors import InputError
from winnow.learn.chat import Conversation, conversation, read_conversations

NEEDLE = Path(winnow.__file__).parent / "assets" / "needle"
CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Où est le 12e?"},
    {"role": "assistant", "content": "Là-bas 🚂."},
    {"role": "user", "content": "And 13?"},
    {"role": "assistant", "content": " Here."},
    {"role": "user", "content": "Thanks."},
]


@pytest.fixture(scope="module")
def needle() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(NEEDLE)


def learnt(row: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    return [tokenizer.decode(list(row.ids[turn.answer : turn.end])) for turn in row.turns]


def test_prompts_are_what_inference_renders(needle: PreTrainedTokenizerBase) -> None:
    llm = LLM("needle")
    row = conversation({"messages": TALK}, needle, "line 1")
    for turn, count in zip(row.turns, (2, 4), strict=True):
        assert list(row.ids[: turn.answer]) == llm.render(TALK[:count])
    assert learnt(row, needle) == ["Là-bas 🚂.<|end|>", " Here.<|end|>"]
    assert [needle.decode(list(row.ids[turn.start : turn.answer])) for turn in row.turns] == ["<|assistant|>"] * 2
    assert needle.decode(list(row.ids[: row.system])) == "<|endoftext|><|system|>Be brief.<|end|>"
    assert len(row.ids) == row.turns[-1].end


@pytest.mark.parametrize("text", ["<assistant>", "é", "a\nb", "   spaces   "])
def test_the_same_for_bytes(text: str) -> None:
    tokenizer = byte_tokenizer()
    llm = LLM(tiny_model(), tokenizer=tokenizer)
    row = conversation({"prompt": text, "answer": text}, tokenizer, "line 1")
    assert list(row.ids[: row.turns[0].answer]) == llm.render([{"role": "user", "content": text}])
    assert learnt(row, tokenizer) == [text]
    assert row.turns[0].answer - row.turns[0].start == len("<assistant>")


def test_a_prompt_and_an_answer_are_a_conversation(needle: PreTrainedTokenizerBase) -> None:
    short = conversation({"prompt": "2 + 2?", "answer": "4"}, needle, "line 1")
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    assert short == conversation({"messages": messages}, needle, "line 1")


def test_what_the_template_writes_behind_the_end_token_is_not_learnt() -> None:
    tokenizer = byte_tokenizer(CHATML)
    row = conversation({"messages": TALK}, tokenizer, "line 1")
    assert learnt(row, tokenizer) == ["Là-bas 🚂.<eos>", " Here.<eos>"]
    assert row.ids[-1] == tokenizer.eos_token_id


def test_a_template_without_a_header_gives_the_decode_phase_the_last_prompt_token() -> None:
    tokenizer = byte_tokenizer("{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}")
    row = conversation({"prompt": "ab", "answer": "c"}, tokenizer, "line 1")
    assert upper_rows(row, "bos") == [[0, 2, 3, 4]]


def test_without_a_template_the_answer_follows_the_prompt() -> None:
    tokenizer = byte_tokenizer(None)
    row = conversation({"prompt": "ab", "answer": "c"}, tokenizer, "line 1")
    assert list(row.ids) == [*tokenizer("abc")["input_ids"], tokenizer.eos_token_id]
    assert learnt(row, tokenizer) == ["c<eos>"]
    assert upper_rows(row, "bos", "last:1") == [[0, 1, 2, 3]]
    with pytest.raises(InputError, match="line 1: the model has no chat template"):
        conversation({"messages": TALK}, tokenizer, "line 1")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_an_empty_prompt_leaves_nothing_to_predict_an_answer_from(tmp_path: Path) -> None:
    """The tokens of the conversation before it in a batch are not its own."""
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "", "answer": "b"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"^data.jsonl, line 2: the prompt is empty"):
        read_conversations(path, byte_tokenizer(None), length=100)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "list; write"),
        ('{"text": "a"}', "an object with text; write"),
        ('{"prompt": "a"}', "an object with prompt; write"),
        ('{"messages": []}', "at least one"),
        ('{"messages": "hello"}', "must be a list"),
        (json.dumps({"messages": [user("a")], "prompt": "x", "answer": "y"}), "two forms of the same; keep one"),
        (json.dumps({"messages": [user("hi \ud800")]}), r"message 0 .*character 3"),
        ('{"messages": [{"role": "user"}]}', "message 0 must be"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "message 0 must be"),
        ('{"prompt": 1, "answer": "b"}', "message 0 must be"),
        (json.dumps({"messages": [user("a")]}), "no assistant message to learn from"),
        ('{"prompt": "a", "answer": "  "}', "message 1 is empty"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "message 0 is the assistant's"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"^data.jsonl, line 3:? .*{message}"):
        read_conversations(path, byte_tokenizer(), length=100)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no systems') }}", "refuses the conversation: no systems"),
        (
            "{% for m in messages %}{% if loop.last %}!{% endif %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}",
            "renders the messages before message 2 otherwise",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(template: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^line 1: the chat template {message}"):
        conversation({"messages": TALK}, byte_tokenizer(template), "line 1")


def test_an_answer_that_merges_with_its_header_is_refused(needle: PreTrainedTokenizerBase) -> None:
    tokenizer = AutoTokenizer.from_pretrained(NEEDLE)
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    assert len(tokenizer("\n\n")["input_ids"]) == 1, "the two line breaks are one token"
    assert learnt(conversation({"prompt": "a", "answer": "b"}, tokenizer, "line 1"), tokenizer) == ["b<|end|>"]
    with pytest.raises(InputError, match=r"^line 1: the first token of message 1 reaches back"):
        conversation({"prompt": "a", "answer": "\n\nb"}, tokenizer, "line 1")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_long_conversations_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [{"prompt": "a" * size, "answer": "b"} for size in (5, 200, 6)]
    path = write(tmp_path / "data.jsonl", rows)
    read = read_conversations(path, byte_tokenizer(), length=100)
    assert read.counts() == {"conversations": 2, "too_long": 1, "tokens": 23 + 24, "supervised": 2}
    with pytest.raises(InputError, match="all 3 conversations are longer than 10 tokens, the shortest has 23"):
        read_conversations(path, byte_tokenizer(), length=10)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no conversation"):
        read_conversations(write(tmp_path / "empty.jsonl", []), byte_tokenizer(), length=100)
    with pytest.raises(InputError, match="cannot read"):
        read_conversations(tmp_path / "missing.jsonl", byte_tokenizer(), length=100)
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(InputError, match="not UTF-8"):
        read_conversations(tmp_path / "latin.jsonl", byte_tokenizer(), length=100)
