"""What policies may ask of a model, and how a prompt is admitted under a plan."""

import functools
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from winnow.engine.depth import measure_depth
from winnow.engine.whole import surprisals
from winnow.errors import InputError
from winnow.plan import Plan
from winnow.policies.base import ModelShape
from winnow.policies.prefill.minference import Pattern
from winnow.runtime.convolutions import Convolutions
from winnow.runtime.decoder import Decoder
from winnow.runtime.first import plant
from winnow.runtime.head_gates import load_gates
from winnow.runtime.heads import RetainingHeads
from winnow.runtime.indexers import Indexers
from winnow.runtime.loading import load
from winnow.runtime.sequence import Prefix, Sequence, new_sequence


@dataclass(frozen=True)
class ModelServices:
    """Implements `winnow.policies.base.Services` with a decoder under full attention."""

    decoder: Decoder
    _tokenizer: PreTrainedTokenizerBase | None
    chunk: int

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        if self._tokenizer is None:
            raise InputError("the model has no tokenizer, and shortening a prompt by its text needs one")
        return self._tokenizer

    @property
    def template(self) -> PreTrainedTokenizerBase | None:
        return self._tokenizer if self._tokenizer is not None and self._tokenizer.chat_template else None

    @property
    def shape(self) -> ModelShape:
        return self.decoder.shape

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    def surprisal(self, ids: list[int]) -> list[float]:
        return [value for piece in surprisals(self.decoder, ids, self.chunk) for value in piece.tolist()]

    def retaining_heads(self, source: str | None, policy: str) -> RetainingHeads:
        return self.decoder.heads(source, policy)

    def convolutions(self, source: str | None) -> Convolutions:
        return self.decoder.convolutions(source)

    def indexers(self, source: str | None) -> Indexers:
        return self.decoder.indexers(source)

    def head_patterns(self, source: str) -> list[list[Pattern]]:
        return self.decoder.patterns(source)

    def head_gates(self, source: str) -> None:
        load_gates(source, self.decoder.model)

    def random_heads(self, width: int, seed: int) -> RetainingHeads:
        return self.decoder.random_heads(width, seed)

    def other(self, model: str) -> "ModelServices":
        return ModelServices(*_loaded(model, self.decoder.device), self.chunk)


@functools.lru_cache(maxsize=1)
def _loaded(model: str, device: torch.device) -> tuple[Decoder, PreTrainedTokenizerBase | None]:
    loaded = load(model, device=device, dtype=None)
    return Decoder(loaded.model), loaded.tokenizer


def admit(
    decoder: Decoder,
    tokenizer: PreTrainedTokenizerBase | None,
    plan: Plan,
    ids: list[int],
    new: int,
    chunk: int,
    prefix: Prefix | None = None,
) -> tuple[Sequence, list[int]]:
    """A sequence for a prompt and up to `new` tokens after it, and the prompt's tokens that the model gets to see.

    prefix: what is there of them already, which the plan allows to go on from.
    """
    if plan.compute.goes_by_depth:
        measure_depth(decoder)  # weights may have changed since the plan was checked
    services = ModelServices(decoder, tokenizer, chunk)
    seen = plan.prompt.shorten(ids, services)
    kept, deep = [ids[i] for i in seen], plan.compute.full_depth(ids, services).among(seen)
    state = new_sequence(
        decoder, plan, len(kept), len(kept) + new, chunk, omitted=len(ids) - len(kept), deep=deep, prefix=prefix
    )
    try:
        _equip(state, services, kept)
        if state.gates.fills or state.deep.anchors:
            decoder.refresh()
        if prefix is None:
            plant(decoder, state, kept[0])
    except BaseException:
        state.release()  # the error's traceback holds it
        raise
    return state, kept


def _equip(state: Sequence, services: ModelServices, prompt: list[int]) -> None:
    """What the policies of its plan bring for a text with this prompt."""
    plan = state.plan
    if state.score is not None and state.score.heads is not None:
        state.scorer = state.score.heads(services)
    state.merger = plan.keep.merger(services)
    state.reader = plan.read.reader(state.shape, services, len(prompt))
    state.chooser = plan.prefill.chooser(services)
    if any(pattern.held for pattern in state.patterns):
        state.repeats = plan.keep.repeats(prompt, services)
