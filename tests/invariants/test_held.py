"""Memory that is shown is all of it: what a sequence holds is found by walking its objects, for every policy."""

import pytest
import torch

from covering import covered
from driving import decode, prefill
from trials import COMBINED, PROMPT, fresh, plan_of, small_llm
from winnow import Plan, SamplingParams
from winnow.cache.aside import Aside
from winnow.cache.layer import LayerCache
from winnow.cache.quantized import QuantizedSlab
from winnow.cache.requantized import RequantizedSlab
from winnow.policies.read.quest import Bounds
from winnow.policies.read.sketch import Sketches
from winnow.policies.registry import POLICIES
from winnow.runtime.observer import Observer
from winnow.runtime.sequence import Sequence

MODELS = {
    "plan",
    "shape",
    "frequencies",
    "scorer",
    "merger",
    "observer",
    "stats",
}  # the model's, the caller's, or counted here
EVERY = [*(plan_of(name, policy.trial) for name, policy in POLICIES.items()), *map(Plan.parse, COMBINED)]


def tensors_of(thing, seen):
    """Every tensor that can be reached from an object, once."""
    if id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors_of(value, seen)
    elif isinstance(thing, (list, tuple, set, frozenset)) or type(thing).__name__ == "deque":
        for value in thing:
            yield from tensors_of(value, seen)
    elif hasattr(thing, "__dict__") and not isinstance(thing, (type, torch.dtype, torch.device)):
        left_out = MODELS if isinstance(thing, Sequence) else ("rope", "indexers")
        for name, value in vars(thing).items():
            if name not in left_out:
                yield from tensors_of(value, seen)


def memory(state, filled):
    """Bytes of all tensors of a sequence; those with room to grow as far as they have ever been filled.

    filled: by the memory of such a one, the most entries that were live in it. The one index of positions that a layer
    has under any plan is left out.
    """
    caches = {id(cache): cache for cache in state.caches}.values()
    asides = state.aside.values()
    bounds = getattr(state.reader, "_bounds", {}).values()
    seen = {id(tensor): tensor for cache in caches for tensor in parts_of(cache)}
    seen |= {id(tensor): tensor for aside in asides for tensor in (aside.hidden, aside.positions)}
    sketches = getattr(state.reader, "_sketches", {}).values()
    seen |= {id(each): each for each in (*bounds, *sketches)}
    quantized = [slab for cache in caches for slab, _ in cache.memory._settled if isinstance(slab, QuantizedSlab)]
    seen |= {id(tensor): tensor for slab in quantized for tensor in (*slab.codes, *slab.scales, slab.places)}
    remade = [slab for cache in caches for slab, _ in cache.memory._settled if isinstance(slab, RequantizedSlab)]
    seen |= {id(tensor): tensor for slab in remade for side in slab.sides for tensor in side}
    total = sum(tensor.nbytes for tensor in tensors_of(state, seen))
    total += sum(each._held[:, :, 0].nbytes * filled[each] for each in bounds)
    for each in sketches:
        total += each._centre.nbytes + (each._codes[:, 0].nbytes + each._lengths[:, :16].nbytes) * filled[each]
    for cache in caches:
        keys, values, *noted = parts_of(cache)
        own = filled.get(keys, 0)
        total += (keys.nbytes + values.nbytes) // max(1, cache.slab.capacity) * own
        noted = [each for each in noted if each is not cache.positions or each.dim() == 2]
        behind = (
            cache.memory.offset - cache._base
        )  # others, where heads hold different numbers, have theirs beside them
        total += sum(each.nbytes // max(1, each.shape[-1]) for each in noted) * (own + behind)
    for slab in quantized:  # of whole groups
        total += sum(each.nbytes for each in (*slab.codes, *slab.scales, slab.places)) * slab.units // slab.capacity
    total += sum(tensor.nbytes for slab in remade for side in slab.sides for tensor in side)
    for aside in asides:
        if len(aside.positions):
            total += (aside.hidden.nbytes + aside.positions.nbytes) // len(aside.positions) * filled[aside.hidden]
    return total


def parts_of(cache):
    return cache.slab.keys, cache.slab.values, cache.positions, *([] if cache.scores is None else [cache.scores])


@pytest.fixture
def filled(monkeypatch):
    """The most entries that were ever live in a piece of memory, by its tensor or its object."""
    known = {}

    def note(memory, entries):
        known[memory] = max(known.get(memory, 0), entries)

    def watched(kind, name, measure):
        true = getattr(kind, name)

        def call(self, *arguments, **options):
            result = true(self, *arguments, **options)
            note(*measure(self, *arguments))
            return result

        monkeypatch.setattr(kind, name, call)

    for way in ("append", "quantize"):
        watched(LayerCache, way, lambda cache, *_: (cache.slab.keys, cache.length - cache._live_settled))
    watched(LayerCache, "retain", lambda cache, *_: (cache.slab.keys, cache.length - cache._live_settled))
    watched(Aside, "put", lambda aside, *_: (aside.hidden, aside.count))
    watched(Aside, "_resize", lambda aside, *_: (aside.hidden, aside.count))
    watched(Bounds, "follow", lambda bounds, keys, start, stop: (bounds, stop - start))
    watched(Sketches, "follow", lambda sketches, keys, start, stop: (sketches, -(-stop // 16) - start // 16))
    return known


class Layers(Observer):
    """The most that is held whenever rows are about to enter a layer."""

    def __init__(self, filled):
        self.filled, self.most, self.state = filled, 0, None

    def entered(self, layer, segment, hidden):
        self.most = max(self.most, memory(self.state, self.filled))


@covered(plan=EVERY, family=("llama", "gemma2"))
def test_what_is_counted_is_what_is_held(plan, family, text, filled):
    """After the prompt and after every step; and at no layer of any step was more held than the total says.

    What is noted on the way is enough: looking at the end alone finds the same peak.
    """
    llm = small_llm(family)
    state, prompt = fresh(llm, plan, text)
    state.observer = layers = Layers(filled)
    layers.state = state
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    assert sum(state.held()) == memory(state, filled) > 0
    for token in text[PROMPT:]:
        decode(llm.decoder, [(state, token)])
        state.measure()
        assert sum(state.held()) == memory(state, filled)
        assert state.stats.held_bytes == state.stats.cache_bytes + state.held()[1]
        assert state.stats.total_bytes >= layers.most
        assert state.stats.total_bytes <= state.stats.peak_cache_bytes + state.stats.aux_bytes
    assert sum(state.fork().held()) <= sum(state.held())  # what has been evicted is not copied
    other, prompt = fresh(llm, plan, text)
    prefill(llm.decoder, other, prompt, llm.prefill_chunk)
    for token in text[PROMPT:]:
        decode(llm.decoder, [(other, token)])
    other.measure()
    assert other.stats.total_bytes == state.stats.total_bytes


def test_full_attention_holds_units_and_nothing_else(text):
    llm = small_llm("llama")
    [out] = llm.generate([text], SamplingParams(max_tokens=7, ignore_eos=True))
    assert out.stats.total_bytes == out.stats.peak_cache_bytes
    assert out.stats.held_bytes == out.stats.cache_bytes
    assert out.stats.aux_bytes == 0
