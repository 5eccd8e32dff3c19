"""Caches whose units are nothing but their scores, for policies that choose by them."""

import torch

from winnow.cache.layer import LayerCache, Slab
from winnow.policies.base import LayerContext
from winnow.policies.keep.base import Moment
from winnow.runtime.sequence import evict_by_score
from winnow.runtime.surprisal import Surprise


def cache_of(scores):
    """A cache of units at positions 0, 1, ... with `scores`, [kv_heads, units]."""
    kv_heads, units = scores.shape
    cache = LayerCache(lambda n: Slab(kv_heads, n, 1, torch.float32, torch.device("cpu")), units, scored=True)
    nothing = torch.zeros(kv_heads, units, 1)
    cache.append(nothing, nothing, torch.arange(units), 0, scores)
    return cache


def kept(policy, cache, prompt=1000, window=None, surprisal=None):
    """Evict in the middle of a prompt; returns the positions that each KV head still holds."""
    known = int(cache.live_positions().max()) + 1
    noted = None if surprisal is None else Surprise(policy.score.repeated, [surprisal]).take()
    evict_by_score(cache, policy, policy.score, Moment(prompt, known, LayerContext(0, 1, window)), noted=noted)
    return cache.live_positions().expand(cache.slab.keys.shape[0], -1).tolist()
