"""Prompt compression by self-information (Selective Context): what a language model saw coming is left out."""

import functools
import importlib.util
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from winnow.errors import InputError, MissingExtraError
from winnow.parameters import Share, Where
from winnow.policies.base import ModelShape, Services
from winnow.policies.prompt.base import PromptPolicy
from winnow.policies.prompt.spelling import Span, encode, special_tokens, spell

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Not after "e.g." or "U.S.", nor after "Mr." or "Dr.".
SENTENCE_END = re.compile(r"(?<=[.?])(?<!\w\.\w[.?])(?<![A-Z][a-z]\.)\s")
SHORTENS = Where("a keep below 1", lambda policy: policy.keep < 1)
PIECE = 1024  # tokens scored together: the context of GPT-2, the scorer of the paper


@dataclass(frozen=True)
class PromptCompression(PromptPolicy):
    """Leave out the parts of the prompt that a language model found least surprising, before the model sees it.

    keep: share of the units that stay, (0, 1]: those whose self-information reaches the (1 - keep) quantile.
    unit: what stays or goes as a whole: "phrase" (noun phrases and single words; the paper's default, which needs spaCy
        and its English model), "token" or "sentence".
    scorer: the model that is surprised: a name, a directory or a hub id; None: the plan's own. The paper takes GPT-2.

    Whitespace runs count as one space. Every sentence is scored on its own, after the token that a text starts with
    (GPT-2's end-of-text token), and in pieces where it is longer than 1024 tokens or than the scorer takes. The
    self-information of a unit is the mean of -ln P over its tokens; a token in several units is shared among them
    equally. The whitespace before a unit goes with it, and tokens that share a character are one unit.

    A prompt token stays if the unit that it overlaps most does. Special tokens (the start of the text, chat markers)
    and the last prompt token always stay, and the text between two special tokens is split into sentences by itself.
    Where the model has no tokenizer the prompt is one sentence of tokens; the first of a piece, with nothing before it
    to be predicted from, stays.

    What stays is a shorter prompt: positions are renumbered. `rows_computed` counts the model under the plan only; the
    time to the first token includes the scoring, which costs at least a prefill of its own. `prompt_tokens`,
    `rows_full` and `units_full` count the prompt as it was given, and that prompt has to fit the model.

    Raises MissingExtraError for phrases without spaCy, InputError where units need text and there is no fast tokenizer,
    ModelError for a scorer that cannot be loaded.

    Source: Li et al., Compressing Context to Enhance Inference Efficiency of Large Language Models, arXiv:2310.06201,
    section 3; a baseline of LazyLLM, arXiv:2407.14057. The mean, where the paper has the sum, is that of its code.
    """

    keep: Share = 0.65
    unit: Literal["phrase", "token", "sentence"] = "token"
    scorer: str | None = None

    name = "prompt_compression"
    source = "arXiv:2310.06201, section 3"
    off: ClassVar = {"keep": 1.0}
    trial: ClassVar = {"keep": 0.6, "unit": "token"}
    matters: ClassVar = {"unit": SHORTENS, "scorer": SHORTENS}
    loads: ClassVar = ("scorer",)
    takes: ClassVar = "a pass over the whole prompt before its first step, for which all others wait"

    def validate(self, shape: ModelShape) -> None:
        needed = ("spacy", "en_core_web_sm") if self.unit == "phrase" else ()
        if any(importlib.util.find_spec(module) is None for module in needed):
            raise MissingExtraError(
                f"{self.name}: unit='phrase' needs spaCy and its English model: pip install spacy && python -m spacy "
                "download en_core_web_sm; or use unit='token'"
            )

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        if self.keep < 1:
            self._models(services)

    def shorten(self, ids: list[int], services: Services) -> list[int]:
        if self.keep == 1:
            return list(range(len(ids)))
        units, scores = self._units(ids, services)
        # NaN, of units without a score, neither moves the threshold nor falls below it.
        scored = not np.isnan(scores).all()
        threshold = np.nanpercentile(scores, 100 * (1 - self.keep)) if scored else -math.inf
        units[-1] = None
        return [i for i, unit in enumerate(units) if unit is None or not scores[unit] < threshold]

    def _models(self, services: Services) -> tuple["PreTrainedTokenizerBase | None", Services]:
        """The prompt's tokenizer, None where tokens are units and there is none, and the model that is surprised."""
        try:
            tokenizer = services.tokenizer
        except InputError:
            if self.unit != "token" or self.scorer is not None:
                raise
            return None, services
        judge = services if self.scorer is None else services.other(self.scorer)
        if slow := next((t for t in (tokenizer, judge.tokenizer) if not t.is_fast), None):
            raise InputError(f"{type(slow).__name__} cannot say which characters a token covers; use a fast tokenizer")
        return tokenizer, judge

    def _units(self, ids: list[int], services: Services) -> tuple[list[int | None], list[float]]:
        """The unit of every prompt token, None where it stays in any case, and the self-information of every unit."""
        tokenizer, judge = self._models(services)
        if tokenizer is None:
            return list(range(len(ids))), _surprisal(
                ids, judge, start=None, limit=min(PIECE, judge.shape.max_positions)
            )
        units: list[int | None] = []
        scores: list[float] = []
        special = special_tokens(tokenizer)
        for stays, run in groupby(ids, special.__contains__):
            part = list(run)
            if stays:
                units += [None] * len(part)
                continue
            text, spans = spell(tokenizer, part)
            ends, found = _score_text(text, judge, self.unit)
            units += [len(scores) + _most(span, ends) if ends else None for span in spans]
            scores += found
        return units, scores


def _score_text(text: str, judge: Services, unit: str) -> tuple[list[int], list[float]]:
    """The units of a text: where each ends, the next one starting there, and the self-information of each."""
    runs = re.findall(r"\s+|\S", text)
    after = list(accumulate(map(len, runs)))  # per character of the squeezed text: where it ends in `text`
    ends: list[int] = []
    scores: list[float] = []
    for start, sentence in _sentences("".join(" " if run.isspace() else run for run in runs)):
        inner, found = _score_sentence(sentence, judge, unit)
        ends += [after[start + end - 1] for end in inner]
        scores += found
    return ends, scores


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence of a text without double whitespace, and where it starts."""
    cuts = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text)]
    for start, stop in pairwise(cuts):
        sentence = text[start:stop]
        if stripped := sentence.strip():
            yield start + sentence.index(stripped), stripped


def _score_sentence(sentence: str, judge: Services, unit: str) -> tuple[list[int], list[float]]:
    """Like `_score_text`, of one sentence."""
    tokenizer = judge.tokenizer
    ids, spans = encode(tokenizer, sentence)
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    information = _surprisal(ids, judge, start, limit=min(PIECE, judge.shape.max_positions))
    if unit == "token":
        ends = sorted({stop for _, stop in spans if stop > 0})
    else:
        ends = [len(sentence)] if unit == "sentence" else _phrases(sentence)
    shares: list[list[float]] = [[] for _ in ends]
    for span, value in zip(spans, information, strict=True):
        touched = _touched(span, ends)
        for index in touched:
            shares[index].append(value / len(touched))
    return ends, [sum(each) / len(each) if each else math.nan for each in shares]


def _surprisal(ids: list[int], judge: Services, start: int | None, limit: int) -> list[float]:
    """-ln P of every token, at most `limit` scored together after `start`; NaN where nothing stands before a token."""
    prefix = [] if start is None else [start]
    first = [math.nan] if start is None else []
    found: list[float] = []
    step = limit - len(prefix)
    for begin in range(0, len(ids), step):
        found += first + judge.surprisal(prefix + ids[begin : begin + step])
    return found


def _touched(span: Span, ends: list[int]) -> range:
    """The units that a span overlaps; an empty span, the one that it lies in; behind all units, the last."""
    first = min(bisect_right(ends, span[0]), len(ends) - 1)
    return range(first, max(first, min(bisect_left(ends, span[1]), len(ends) - 1)) + 1)


def _most(span: Span, ends: list[int]) -> int:
    """The unit that a span overlaps most; of several the first."""
    start, stop = span
    return max(_touched(span, ends), key=lambda u: min(stop, ends[u]) - max(start, ends[u - 1] if u else 0))


def _phrases(sentence: str) -> list[int]:
    """Where the noun phrases and the other words end."""
    return [token.idx + len(token.text) for token in _english()(sentence)]


@functools.cache
def _english() -> Any:
    pipeline = importlib.import_module("spacy").load("en_core_web_sm", disable=["ner"])
    pipeline.add_pipe("merge_noun_chunks")
    return pipeline
