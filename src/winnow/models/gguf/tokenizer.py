"""A tokenizer from the header of a GGUF file, with the ids that llama.cpp gives.

Byte-level vocabularies (`tokenizer.ggml.model = gpt2`) are put together here: transformers' conversion knows few
pre-tokenizers and loses special tokens that are not spelled in bytes. Sentencepiece vocabularies (`llama`) get their
merges from transformers; spaces and special tokens follow llama.cpp.
"""

from typing import Any, NoReturn

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import get_merges

from winnow.errors import ModelError, UnsupportedModelError
from winnow.models.gguf.fields import shown
from winnow.models.gguf.header import Header
from winnow.models.gguf.pretokenizers import BEGINS_TEXTS, SPLITS, WHOLE_TOKENS, pre_tokenizer

BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # gguf.TokenType
_IDS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_SENTENCEPIECE_IDS = {"bos_token": 1, "eos_token": 2, "unk_token": 0}  # where a file does not say
_SPACE = "▁"
# Tokens that end a text wherever they are in a vocabulary, as in llama.cpp's llama-vocab.cpp: a file names one or two
# of its end tokens, and a chat model that knows more would run on past the others.
ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
    *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
    # of code: what follows is padding, another repository, another file
    *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
)


def tokenizer_of(header: Header) -> PreTrainedTokenizerFast:
    """The tokenizer of the model in a GGUF file, with its chat template.

    Raises:
        UnsupportedModelError: a kind of vocabulary or pre-tokenizer that is not known; names it and those that are.
        ModelError: a vocabulary that is missing or damaged.
    """
    vocabulary = Vocabulary(header)
    ids = vocabulary.ids()
    try:
        backend = vocabulary.byte_level() if vocabulary.model == BYTE_LEVEL else vocabulary.sentencepiece()
        backend.post_processor = _around(vocabulary, ids)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            clean_up_tokenization_spaces=False,
            **{name: vocabulary.tokens[id_] for name, id_ in ids.items()},
        )
    except ModelError:
        raise
    except Exception as error:  # the Rust library raises Exception itself
        vocabulary.damaged(f"its tokenizer cannot be built ({' '.join(str(error).split())[:200]})")
    tokenizer.chat_template = vocabulary.value("tokenizer.chat_template", str)
    return tokenizer


def special_ids(header: Header) -> dict[str, int | None]:
    """`bos_token_id`, `eos_token_id` and `pad_token_id` of a configuration, None where there is none."""
    ids = Vocabulary(header).ids()
    return {f"{name}_id": ids.get(name) for name in ("bos_token", "eos_token", "pad_token")}


class Vocabulary:
    """The keys of a header that begin with `tokenizer.`, checked."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.name = header.path.name
        self.model = self.value("tokenizer.ggml.model", str)
        if self.model not in (BYTE_LEVEL, SENTENCEPIECE):
            raise UnsupportedModelError(
                f"{self.name}: tokenizer.ggml.model = {shown(self.model)} is not supported; "
                f"{BYTE_LEVEL} and {SENTENCEPIECE} are: use the model's Hugging Face directory"
            )
        tokens = self.value("tokenizer.ggml.tokens", list) or []
        self.tokens: list[str] = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
        if not self.tokens or len(set(self.tokens)) < len(self.tokens):
            self.damaged("tokenizer.ggml.tokens is " + ("missing" if not self.tokens else "a list with repetitions"))
        self.types = self._per_token("tokenizer.ggml.token_type", "iu")

    def damaged(self, what: str) -> NoReturn:
        raise ModelError(f"{self.name}: {what}; the file is damaged: download it again")

    def value(self, key: str, kind: type) -> Any:
        value = self.header.metadata.get(key)
        if value is not None and type(value) is not kind:
            self.damaged(f"{key} is {shown(value)}, not of type {kind.__name__}")
        return value

    def _per_token(self, key: str, kinds: str) -> np.ndarray | None:
        value = self.header.metadata.get(key)
        if value is not None and (
            getattr(value, "dtype", np.dtype("O")).kind not in kinds or len(value) != len(self.tokens)
        ):
            self.damaged(f"{key} is not a list of {len(self.tokens):,} numbers, one for each token")
        return value

    def ids(self) -> dict[str, int]:
        """Ids of the special tokens that the file names, by their name in transformers."""
        found = dict(_SENTENCEPIECE_IDS) if self.model == SENTENCEPIECE else {}
        found |= {name: id_ for name, key in _IDS.items() if (id_ := self.id(key)) is not None}
        return {name: id_ for name, id_ in found.items() if id_ < len(self.tokens)}

    def id(self, key: str) -> int | None:
        value = self.value(key, int)
        if value is not None and not 0 <= value < len(self.tokens):
            self.damaged(f"{key} is {value}, the vocabulary has {len(self.tokens):,} tokens")
        return value

    def adds(self, key: str, default: bool) -> bool:
        value = self.value(key, bool)
        return default if value is None else value

    def of_type(self, *types: int) -> list[str]:
        if self.types is None:
            return []
        return [self.tokens[index] for index in np.flatnonzero(np.isin(self.types, types))]

    def pre(self) -> str:
        name = self.value("tokenizer.ggml.pre", str)
        if name not in SPLITS:
            stated = "has no tokenizer.ggml.pre" if name is None else f"tokenizer.ggml.pre = {name!r} is unknown"
            raise UnsupportedModelError(
                f"{self.name}: {stated}, so its token ids would be wrong; get a newer conversion of the model "
                f"or use its Hugging Face directory. Known: {', '.join(sorted(SPLITS))}"
            )
        return name

    def byte_level(self) -> Tokenizer:
        pre = self.pre()
        merges = [tuple(merge.split(" ")) for merge in self.value("tokenizer.ggml.merges", list) or []]
        if not merges or any(len(merge) != 2 for merge in merges):
            self.damaged("tokenizer.ggml.merges is " + ("missing" if not merges else "not a list of pairs"))
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in WHOLE_TOKENS))
        backend.pre_tokenizer = pre_tokenizer(pre)
        backend.decoder = decoders.ByteLevel()
        self._add_special(backend)
        return backend

    def sentencepiece(self) -> Tokenizer:
        backend = Tokenizer(
            models.BPE(
                {token: index for index, token in enumerate(self.tokens)},
                self._sentencepiece_merges(),
                unk_token=self.tokens[self.ids().get("unk_token", 0)],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        # llama.cpp puts the space before every stretch of text between special tokens, a leading space or not.
        prefix = self.adds("tokenizer.ggml.add_space_prefix", True)
        spaces = normalizers.Replace(" ", _SPACE)
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
        strip = [decoders.Strip(" ", left=1)] if prefix else []
        backend.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        self._add_special(backend)
        return backend

    def _sentencepiece_merges(self) -> list[tuple[str, str]]:
        """The pairs that make up each token, the best first."""
        scores = self._per_token("tokenizer.ggml.scores", "iuf")
        if scores is None:
            self.damaged("tokenizer.ggml.scores is missing")
        stated = {"tokens": self.tokens, "scores": scores.tolist()}
        if self.header.architecture.startswith("gemma"):  # transformers: Gemma's scores are not its order
            return get_merges(stated, {token: -index for index, token in enumerate(self.tokens)})
        return get_merges(stated)

    def _add_special(self, backend: Tokenizer) -> None:
        """Tokens that are found in text as they stand."""
        # llama.cpp's table for Phi-3, which no key of a file holds: what follows these tokens loses its leading spaces.
        strips = self.header.architecture == "phi3" and self.model == SENTENCEPIECE
        kept = {"<unk>", "<s>", "<|endoftext|>"}

        def added(tokens: list[str], special: bool) -> list[AddedToken]:
            return [
                AddedToken(token, normalized=False, special=special, rstrip=strips and token not in kept)
                for token in tokens
            ]

        whole = set(self.of_type(CONTROL, UNKNOWN, USER_DEFINED))
        # llama.cpp takes these for control tokens, whatever a careless conversion has made of them.
        mistaken = [token for token in self.tokens if token in ENDS and token not in whole]
        backend.add_special_tokens(added(self.of_type(CONTROL, UNKNOWN) + mistaken, special=True))
        backend.add_tokens(added(self.of_type(USER_DEFINED), special=False))


def _around(vocabulary: Vocabulary, ids: dict[str, int]) -> processors.PostProcessor:
    """What is put before and behind a text: as the file says, else as llama.cpp does for its kind of vocabulary."""
    begins = vocabulary.model == SENTENCEPIECE or vocabulary.value("tokenizer.ggml.pre", str) in BEGINS_TEXTS
    wanted = {
        "bos_token": vocabulary.adds("tokenizer.ggml.add_bos_token", begins),
        "eos_token": vocabulary.adds("tokenizer.ggml.add_eos_token", False),
    }
    for name, add in wanted.items():
        if add and name not in ids:
            vocabulary.damaged(f"{_IDS[name]} is missing, but the token is to be added to every text")
    begin, end = ([vocabulary.tokens[ids[name]]] if add else [] for name, add in wanted.items())
    return processors.TemplateProcessing(
        single=[*begin, "$A:0", *end],
        pair=[*begin, "$A:0", *end, *begin, "$B:0", *end],
        special_tokens=[(vocabulary.tokens[ids[name]], ids[name]) for name, add in wanted.items() if add],
    )
