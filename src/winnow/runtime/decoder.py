"""A Hugging Face decoder, taken apart at its layers. Nothing of the model is re-implemented, and nothing of it changes.

What runs is a shadow of the model's modules over the same tensors, whose attention is Winnow's registered function and
whose linear layers use the kernels for few rows; the model itself stays stock.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from winnow.errors import ModelError
from winnow.kernels.launch import check_process, compile_kernels, numba_missing, openmp
from winnow.models.packed import is_packed
from winnow.models.shadow import shadow_of
from winnow.policies.prefill.minference import Pattern
from winnow.runtime.adapters import base_name, dtype_hint
from winnow.runtime.convolutions import Convolutions, load_convolutions
from winnow.runtime.families import family_of
from winnow.runtime.head_patterns import load_patterns
from winnow.runtime.heads import HeadsConfig, RetainingHeads, bundled_for, load_heads
from winnow.runtime.indexers import Indexers, load_indexers
from winnow.runtime.rotary import Rotary
from winnow.runtime.shape import shape_of
from winnow.runtime.threads import Threads

ATTENTION = "winnow"
# One step at a time per model, whichever thread or LLM it comes from: two would take each other's cores.
_LOCKS: WeakKeyDictionary[PreTrainedModel, threading.RLock] = WeakKeyDictionary()


class Decoder:
    """The parts of a causal language model that a step walks through.

    model: the user's, never changed; tree: what is driven. deterministic: whether sequences pass through it one by one,
    as they would alone. Raises UnsupportedModelError where it has anything unknown.
    """

    def __init__(self, model: PreTrainedModel, *, deterministic: bool = False) -> None:
        self.deterministic = deterministic
        self.family = family_of(model)
        self.model = model
        self.tree: Any = shadow_of(model, ATTENTION)
        self._lock = _LOCKS.setdefault(model, threading.RLock())
        self._placed = (model.dtype, model.device)
        # Of the model's own properties each looks through all modules: one parameter tells as much.
        self._told_by = next((each for each in model.parameters() if each.dtype == model.dtype), None)
        self.config: Any = model.config
        self.rotary = Rotary(model)
        self.layers = list(self.tree.model.layers)[: self.config.num_hidden_layers]
        self.shape = shape_of(self.config, model.dtype.itemsize)
        self.rope_kinds = self.shape.rotations
        self._identity = self.rotary.identity()
        self.derived: dict[Any, Any] = {}  # what is computed from the weights once; see `refresh`
        self._derived_from: object = None
        self._files: dict[str, object] = {}  # of the directories that trained parts were loaded from
        self._parameters, self._places = list(self.tree.parameters()), list[int]()
        self.locate()
        compile_kernels(model.device, packed=is_packed(model), layers=self.program.rows > 0)
        self.default_heads: str | Path | RetainingHeads | None = None
        self.default_convolutions: str | Path | Convolutions | None = None
        self.default_indexers: str | Path | Indexers | None = None
        serves = model.device.type == "cpu" and numba_missing() is None and openmp() is not None
        # Of decode steps; None: always torch's. What torch computes may be rounded otherwise on other threads.
        self.threads = Threads() if serves and not deterministic else None

    @property
    def device(self) -> torch.device:
        return self._placed[1]

    @property
    def dtype(self) -> torch.dtype:
        return self._placed[0]

    @torch.no_grad()
    def refresh(self) -> None:
        """Forget what was computed from weights, and loaded from files, that have changed since; called when a sequence
        is admitted.

        A change is one of the memory, of the count of in-place writes, or of the middle value of any parameter: an
        adapter that is merged writes past that count. Raises ModelError where the model has other parameters than the
        tree that is driven.
        """
        parameters = list(self.model.parameters())
        if [id(p) for p in parameters] != [id(p) for p in self.tree.parameters()]:
            raise ModelError(
                "modules or parameters of the model were replaced since the LLM was made; make a new LLM of it"
            )
        middles = torch.stack([p.flatten()[p.numel() // 2].float() for p in parameters]).tolist()
        places = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
        weights = (middles, places)
        others = any(_files(place) not in ([], were) for place, were in self._files.items())  # gone: loaded they are
        if others or weights != self._derived_from:
            self._derived_from, self.derived, self._files = weights, {}, {}

    def weights(self) -> object:
        """The same object for as long as the weights are the same; see `refresh`."""
        self.refresh()
        return self.derived.setdefault("weights", object())

    def heads(self, source: str | None, policy: str = "locret") -> RetainingHeads:
        """Retaining heads of the model, loaded once: of a directory, or None: the default ones, or bundled ones.

        policy: which keeps units by them. Raises ModelError where there are none, or where they are another model's or
        do not say what the policy goes by: `locret` only ranks, and takes all.
        """
        self.refresh()
        known = self.derived.setdefault("heads", {})
        if source not in known:
            found = source or self.default_heads or bundled_for(self.model)
            if found is None:
                trained = "kvzap" if policy == "kvzap" else "locret"
                raise ModelError(
                    f"there are no retaining heads for {base_name(self.model)} with these weights, adapters included; "
                    f"train some with winnow train {trained} and name their directory: {policy}(heads='DIR')"
                    f"{dtype_hint(self.model)}"
                )
            known[source] = load_heads(self._noted(found), self.model)
        heads: RetainingHeads = known[source]
        if policy == "kvzap" and heads.config.target != "repeat":
            raise ModelError(
                f"the retaining heads of {heads.config.base} say a {heads.config.target}, and the threshold of kvzap "
                "is one of what a repetition needs; train some with winnow train kvzap and name their directory: "
                "kvzap(heads='DIR')"
            )
        return heads

    def convolutions(self, source: str | None) -> Convolutions:
        """Convolutions of the model, loaded once: of a directory, or None: the default ones.

        Raises ModelError where there are none, or where they are another model's.
        """
        self.refresh()
        known = self.derived.setdefault("convolutions", {})
        if source not in known:
            if (found := source or self.default_convolutions) is None:
                raise ModelError(
                    f"there are no convolutions for {base_name(self.model)}; train some with winnow train lococo and "
                    "name their directory: lococo(convolutions='DIR')"
                )
            known[source] = load_convolutions(self._noted(found), self.model)
        convolutions: Convolutions = known[source]
        return convolutions

    def indexers(self, source: str | None) -> Indexers:
        """Indexers of the model, loaded once: of a directory, or None: the default ones.

        Raises ModelError where there are none, or where they are another model's.
        """
        self.refresh()
        known = self.derived.setdefault("indexers", {})
        if source not in known:
            if (found := source or self.default_indexers) is None:
                raise ModelError(
                    f"there are no indexers for {base_name(self.model)}; train some with winnow train indexer and name "
                    "their directory: indexer(trained='DIR')"
                )
            known[source] = load_indexers(self._noted(found), self.model, self.shape)
        indexers: Indexers = known[source]
        return indexers

    def patterns(self, source: str) -> list[list[Pattern]]:
        """Patterns of the model's heads, loaded once from a directory. Raises ModelError as `load_patterns`."""
        self.refresh()
        known = self.derived.setdefault("patterns", {})
        if source not in known:
            known[source] = load_patterns(self._noted(source), self.model).layers
        found: list[list[Pattern]] = known[source]
        return found

    def _noted(self, found: Any) -> Any:
        """The same. Of a directory: from here on `refresh` sees when its files change, as another training's do."""
        if isinstance(found, str | Path):
            self._files[str(found)] = _files(found)
        return found

    def random_heads(self, width: int, seed: int) -> RetainingHeads:
        """Untrained retaining heads with `width` hidden values, drawn once."""
        known = self.derived.setdefault("random heads", {})
        if (width, seed) not in known:
            config = HeadsConfig.of(self.model, self.shape, width)
            known[width, seed] = RetainingHeads.random(config, seed).beside(self.model)
        heads: RetainingHeads = known[width, seed]
        return heads

    def locate(self) -> None:
        """Find the weights anew if they have moved, as libraries move them that put adapters in; before every pass."""
        places = [parameter.data_ptr() for parameter in self._parameters]
        if places != self._places:
            from winnow.runtime.program import Program  # which needs what needs this

            self._places = places
            self.program: Program = Program(self)  # the layers that can be taken several at once

    def embed(self, ids: Tensor) -> Tensor:
        """[rows] token ids -> [1, rows, hidden]."""
        return self.family.embedding(self.config, self.tree.model.embed_tokens(ids[None]))

    def layer(self, index: int, hidden: Tensor, call: object) -> Tensor:
        """One decoder layer over flat rows `[1, rows, hidden]`; `call` reaches the attention function as `winnow=`."""
        out = self.layers[index](hidden, attention_mask=None, position_embeddings=self._identity, winnow=call)
        return out[0] if isinstance(out, tuple) else out

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] after the last layer -> [rows, vocab] float32."""
        logits = self.tree.lm_head(self.tree.model.norm(hidden[None]))[0]
        return self.family.logits(self.config, logits).float()

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Within: this thread alone steps the model.

        Raises ModelError where it was moved or cast since, and in a process forked from the one that has it.
        """
        check_process()  # first: whoever holds the lock may be in the other one
        with self._lock:
            told = self.model if self._told_by is None else self._told_by
            if (told.dtype, told.device) != self._placed:
                raise ModelError("the model was moved or cast since the LLM was made; make a new LLM of it")
            yield

    @contextmanager
    def inferring(self) -> Iterator[None]:
        """Within: as in `driving`, without gradients, in the model's dtype whatever a caller's `torch.autocast` says.

        Kernels of decode steps take no other; prompts would be computed in one and answers in another.
        """
        kind = self.device.type
        mixed = torch.is_autocast_enabled(kind)
        with torch.inference_mode(), torch.autocast(kind, enabled=False) if mixed else nullcontext(), self.driving():
            yield

    @contextmanager
    def decoding(self, rows: int) -> Iterator[None]:
        """Within: this thread alone steps the model, by a row of each of so many sequences and nothing else."""
        check_process()
        with self._lock, nullcontext() if self.threads is None else self.threads.decoding(rows):
            yield


def _attention(module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **keywords: Any) -> Any:
    """What `AttentionInterface` calls: hands everything to the step that is running."""
    return keywords.pop("winnow").attend(module, q, k, v, **keywords), None


def _files(place: str | Path) -> list[tuple[str, int, int]]:
    """Of the files in a directory: what is another when they are written anew. Nothing where it is none."""
    found = []
    for each in Path(place).glob("*"):
        with suppress(FileNotFoundError):  # as files are that were written beside others, to replace them
            stat = each.stat()
            found.append((each.name, stat.st_mtime_ns, stat.st_size))
    return sorted(found)


AttentionInterface.register(ATTENTION, _attention)
