"""Anchor sets, and where chat templates of several styles begin a turn."""

import pytest

from tokenizers_for_tests import byte_tokenizer
from winnow.errors import InputError
from winnow.policies.compute.anchors import anchor_positions, anchors_problem
from winnow.policies.compute.turns import closing, decode_start, markers, system_length

LLAMA = (
    "{{ '<s>' }}{% for m in messages %}{{ '[' + m['role'] + ']\n\n' + m['content'] + '[eot]' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]\n\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '[system]\n\nBe kind.[eot]' }}{% endif %}"
    + LLAMA.removeprefix("{{ '<s>' }}")
)  # fmt: skip
INSTRUCT = (
    "{{ '<bos>' }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + '<eos>' }}{% endif %}{% endfor %}"
)
REFUSES = "{{ raise_exception('no conversations here') }}"


def tokenizer(template):
    made = byte_tokenizer()
    made.chat_template = template
    return made


def ids_of(text):
    return byte_tokenizer()(text, add_special_tokens=False)["input_ids"]


def text_of(ids):
    return byte_tokenizer().decode(list(ids))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", []),
        ("bos", [0]),
        ("first:3", [0, 1, 2]),
        ("last:2", [8, 9]),
        ("system", [0, 1, 2, 3]),
        ("all", list(range(10))),
        ("bos + last:1", [0, 9]),
        ("first:2+system", [0, 1, 2, 3]),
    ],
)
def test_positions(text, expected):
    assert anchors_problem(text) is None
    assert anchor_positions(text, 10, system=4) == expected


def test_random_anchors_depend_on_the_prompt_length_alone():
    drawn = anchor_positions("random:5", 100, None)
    assert drawn == sorted(set(drawn))
    assert (len(drawn), drawn[-1] < 100) == (5, True)
    assert drawn == anchor_positions("random:5", 100, 7) != anchor_positions("random:5", 101, None)


@pytest.mark.parametrize(
    "text", ["", "eos", "first", "first:0", "first:-1", "last:1.5", "bos,system", "bos+", "last:" + "9" * 5000]
)
def test_spellings_that_mean_nothing(text):
    assert "none of none, bos" in anchors_problem(text)


@pytest.mark.parametrize("text", ["first:11", "last:11", "random:11"])
def test_anchors_beyond_the_prompt(text):
    with pytest.raises(InputError, match="asks for 11 tokens, and the prompt has 10 before"):
        anchor_positions(text, 10, None)


def test_no_token_before_the_decode_phase():
    assert anchor_positions("bos+all+none", 0, None) == []


@pytest.mark.parametrize(
    ("template", "user", "assistant"),
    [(LLAMA, "[user]", "[assistant]\n\n"), (INSTRUCT, "[INST]", "")],
)
def test_markers(template, user, assistant):
    found = markers(tokenizer(template))
    assert (text_of(found.user), text_of(found.assistant)) == (user, assistant)


@pytest.mark.parametrize("template", [None, REFUSES])
def test_no_markers(template):
    assert markers(tokenizer(template)) is None
    assert decode_start([5, 6], tokenizer(template)) == 1


def test_where_turns_begin():
    text = "<s>[system]\n\nBe kind.[eot][user]\n\nA[eot][assistant]\n\nB[eot][user]\n\nC[eot][assistant]\n\nAnswer:"
    ids = ids_of(text)
    assert decode_start(ids, tokenizer(LLAMA)) == text.rindex("[assistant]")
    assert system_length(ids, tokenizer(LLAMA)) == text.index("[user]")


def test_a_system_turn_that_the_template_adds():
    made = tokenizer(DEFAULT_SYSTEM)
    ids = made.apply_chat_template([{"role": "user", "content": "A"}], tokenize=True, return_dict=True)["input_ids"]
    # The end of the system turn belongs to the marker here: a user's turn never begins without one.
    assert text_of(ids[: system_length(ids, made)]) == "[system]\n\nBe kind."


def test_a_template_that_is_set_later():
    made = tokenizer(LLAMA)
    assert text_of(markers(made).user) == "[user]"
    made.chat_template = INSTRUCT
    assert text_of(markers(made).user) == "[INST]"
    made.chat_template = None
    assert markers(made) is None


def test_words_of_the_template_itself():
    made = tokenizer(DEFAULT_SYSTEM.replace("Be kind.", "Do as one asks, in two or three words."))
    assert text_of(markers(made).user).endswith("[user]")


@pytest.mark.parametrize("message", ["hello", " hello", "\n\nhello", "1"])
def test_a_marker_is_found_where_its_end_is_one_token_with_the_message(message):
    made = byte_tokenizer(INSTRUCT, merges=[("Ġ", "h"), ("Ġ", "Ġ"), ("Ġ", "Ċ")])
    rendered = f"<bos>[INST] {message} [/INST]"
    ids = made(rendered, add_special_tokens=False)["input_ids"]
    assert system_length(ids, made) == 1
    assert text_of(closing(ids, made)) == " [/INST]"


def test_a_prompt_without_turns():
    assert decode_start(ids_of("Once upon a time"), tokenizer(LLAMA)) == len("Once upon a time") - 1
    assert system_length(ids_of("Once upon a time"), tokenizer(LLAMA)) is None
    assert decode_start(ids_of("[assistant]\n\n"), None) == len("[assistant]\n\n") - 1
