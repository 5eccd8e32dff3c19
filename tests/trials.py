"""Every policy with parameters that act on a few dozen tokens, on small models: what tests of the whole share."""

import functools
from dataclasses import replace

import torch

from models import small_model
from winnow import LLM, Plan
from winnow.engine.engine import Engine
from winnow.engine.services import admit
from winnow.policies.registry import POLICIES
from winnow.runtime.convolutions import Convolutions, ConvolutionsConfig
from winnow.runtime.heads import HeadsConfig, RetainingHeads
from winnow.runtime.indexers import Indexers, IndexersConfig

PROMPT = 31
# A value between two codes may come to either where rounding differs by a last bit. One such code of two bits, and what
# follows from it in the layers above, changes logits by up to 3e-2, all codes together by 2e-1; when codes are made,
# and of what, is tested to the bit elsewhere.
EXACT, TIPPED = 1e-5, 6e-2
ELSEWHERE = ("mapped",)  # the very units of full attention, held elsewhere: the same to the bit
COMBINED = (
    "lazyllm(layers=[1, 2], keep=0.5) + slowfast(budget=7, sink=2, recent=5, trigger='periodic', interval=3)",
    "slowfast(budget=7, sink=2, recent=5, trigger='periodic', interval=2, publish_delay=3)",
    "slowfast(budget=3, sink=1, recent=3, bootstrap=30, trigger='periodic', interval=4)",
    "speed(cutoff=2, anchors='first:9') + locret(budget=9, chunk=6, local=4)",
    "static_prune(keep=0.4, layers=2) + quest(page=2, budget=6, dense_layers=1)",
    "static_prune(keep=0.4, layers=2) + sketch(budget=8, sink=1, recent=2, lag=3)",
    "sirllm(budget=9, chunk=6, sink=2, recent=2, local=4, decode_chunk=5)",
    "locret(budget=9, chunk=6, local=4, decode_chunk=5) + sink_recent(sink=2, recent=4)",
    "expected_attention(budget=9, chunk=6, sink=2, ahead=8, local=4, decode_chunk=5)",
    "fastkv(keep=0.5, layer=2, window=4, kernel=3) + snapkv(budget=9, chunk=None, local=0, window=4, kernel=3)",
    "fastkv(keep=0.5, layer=2, window=4, kernel=3, voters=9, votes='max', sink=1)",
    "pop(cutoff=2) + lagkv(budget=9, chunk=6, sink=1, lag=3, local=4)",
    "quantized(bits=4, group=16, residual=0, chunk=20, hadamard=True)",
    "quantized(bits=4, group=16, residual=0, chunk=20, pre_rope=True)",
    "minference(vertical=3, slash=4, sink=1, near=1, block=2, chunk=8) + quest(page=2, budget=6, dense_layers=1)",
    "lazyllm(layers=[1, 3], keep=0.6, voters=5, votes='max')",
    "lazyllm(layers=[1, 2], keep=0.5) + xattention(threshold=0.5, stride=2, block=4)",
    "snapkv(budget=9, chunk=6, window=4, kernel=3, local=4, by_layer='pyramid', by_head='adaptive')",
    "locret(budget=9, chunk=6, local=4, decode_chunk=5, by_head='adaptive')",
    "kvzap(threshold=0.0, recent=2, chunk=7, budget=9, decode_chunk=4)",
    "random_drop(keep=0.7) + kvzip(budget=7, chunk=5, sink=1, local=3, asks=[9])",
    "lococo(budget=9, chunk=6, decode_chunk=4)",
    "lococo_locret(budget=14, chunk=5, recent=2, decode_chunk=None) + quantized(bits=4, group=16, residual=0)",
    "locret(budget=20, chunk=6, local=4) + quantized(bits=4, group=16, residual=0, pre_rope=True)",
)


def plan_of(name, parameters):
    policy = POLICIES[name]
    return Plan(**{policy.verb: policy(**parameters)})


def tolerance(plan):
    """How far logits may be from those of the same plan whose rows came in other company."""
    return EXACT if plan.store.next_change(0, PROMPT) is None else TIPPED


@functools.cache
def small_llm(name, device="cpu", dtype=torch.float32):
    """With random heads, convolutions and indexers, for the policies that need some. Tests share it, and put back what
    they change."""
    llm = LLM(small_model(name, device, dtype), prefill_chunk=10)
    config = HeadsConfig.of(llm.model, llm.decoder.shape, width=8, target="repeat")
    llm.decoder.default_heads = RetainingHeads.random(config, seed=1)
    llm.decoder.default_convolutions = small_convolutions(llm)
    llm.decoder.default_indexers = small_indexers(llm)
    return llm


def small_convolutions(llm):
    """Untrained, of as many sums as the trials of policies have room for; small, so that many units are in a sum."""
    drawn = Convolutions.random(ConvolutionsConfig.of(llm.model, llm.decoder.shape, sums=4, kernel=5), seed=1)
    return Convolutions(drawn.config, [replace(layer, weight=0.05 * layer.weight) for layer in drawn.layers])


def small_indexers(llm):
    """Untrained."""
    return Indexers.random(IndexersConfig.of(llm.model, llm.decoder.shape, heads=3, dim=8), seed=1)


def fresh(llm, plan, ids, prompt=PROMPT):
    """A sequence with no token yet, and the tokens of its prompt that the plan lets the model see."""
    return admit(llm.decoder, llm.tokenizer, plan, ids[:prompt], len(ids) - prompt, llm.prefill_chunk)


def held(engine: Engine) -> int:
    """Bytes that all sequences of an engine hold now, those that several of them share once."""
    states = [job.state for entry in engine._running for job in entry.jobs if job.state.caches]
    shared: dict[int, list[int]] = {}
    for cache in (cache for state in states for cache in state.own_caches()):
        for slab, slots in cache.memory._settled:
            shared.setdefault(id(slab), []).append(slots * slab.unit_bytes)
    return sum(sum(state.held()) for state in states) - sum(sum(each) - max(each) for each in shared.values())
