"""Generation defaults from the header of a GGUF file: where a text ends, and how the model's authors sample."""

from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from winnow.errors import ModelError
from winnow.models.gguf.fields import shown
from winnow.models.gguf.header import Header
from winnow.models.gguf.tokenizer import ENDS, Vocabulary

_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# key after general.sampling. -> (name in transformers, least, most)
_SAMPLING = {
    "temp": ("temperature", 0.0, 1e6),
    "top_k": ("top_k", 0, 2**31),
    "top_p": ("top_p", 0.0, 1.0),
    "min_p": ("min_p", 0.0, 1.0),
    "penalty_repeat": ("repetition_penalty", 1e-6, 1e6),
}


def generation_of(header: Header, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """`eos_token_id` holds every token that ends a text; sampling parameters only where the file states them.

    Raises ModelError for an end token outside the vocabulary or a sampling parameter that is none.
    """
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=_ends(Vocabulary(header), tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        **_sampling(header),
    )


def _ends(vocabulary: Vocabulary, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token that the file calls the end, then all others in the order of their ids."""
    known = tokenizer.get_vocab()
    texts = {text for text in ENDS if text in known}
    if {"<|call|>", "<|return|>"} <= texts or {"<|calls|>", "<|flush|>"} <= texts:
        texts.discard("<|end|>")  # ends a message there, not the answer
    if "<|tool_response>" in texts:
        texts.discard("</s>")  # plain text in such a vocabulary
    stated = [vocabulary.id(f"tokenizer.ggml.{key}_token_id") for key in _END_KEYS]
    ends = {known[text] for text in texts} | {id_ for id_ in stated if id_ is not None}
    first = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return first + sorted(ends - set(first))


def _sampling(header: Header) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, (name, least, most) in _SAMPLING.items():
        value = header.metadata.get(f"general.sampling.{key}")
        if value is None:
            continue
        if type(value) not in (int, type(least)) or not least <= value <= most:
            raise ModelError(
                f"{header.path.name}: general.sampling.{key} is {shown(value)}, not a number from {least:g} to "
                f"{most:g}; the file is damaged: download it again"
            )
        found[name] = round(value, 6)  # a float32: 0.7 is stored as 0.699999988
    if found.get("temperature") == 0:
        return {}  # greedy, as without parameters
    return found | {"do_sample": True} if found else {}
