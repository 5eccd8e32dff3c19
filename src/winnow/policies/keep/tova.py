"""TOVA: what the current token attends to least leaves a cache of fixed size."""

from dataclasses import dataclass, replace

from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.parameters import Count, Natural
from winnow.policies.keep.base import Moment, Score
from winnow.policies.keep.budgeted import Budgeted, ByLayer, Positions, Weigh


@dataclass(frozen=True)
class TOVA(Budgeted):
    """Drop the tokens to which the last row pays least attention, the same in all heads of a layer.

    A token's score is the attention weight that the row right before an eviction gives it, as the mean over all query
    heads of the layer: s_u = 1/H sum_h softmax(q_h K^T)_u. Nothing of it is remembered, so every eviction has a vote
    of its own. No token is protected: the last one stays for what it pays itself.

    budget: units per KV head that a layer keeps, in tokens.
    chunk: prompt tokens from one eviction to the next; None: a single one, with full attention over the prompt before
        it, as in the authors' code.
    local: last tokens of the prompt that stay beside the budget, and come after the vote; None: 100, but no more
        than the budget and all but one of the prompt. At the first eviction after the prompt they become units like
        any others.
    positions: "compact": rope positions are places among the kept units, and a prompt may be longer than the model's
        positions; "original": places in the text, as in the authors' code.
    decode_chunk: new tokens from one eviction to the next, 1 in the authors' code: one comes, one goes; None: none is
        evicted after the prompt, as in kvpress.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, with as
        many units in all (PyramidKV, arXiv:2406.02069).
    weigh: "uniform": tokens stay by their scores; "output": half of them do, and the others by (score + 1e-4) times the
        norm of what the output projection makes of their values (CriticalKV, arXiv:2502.03805), as the mean over all
        heads. Every eviction takes that of all that a layer keeps, so give decode steps a larger `decode_chunk`.

    With chunk=None and local=0 this is the authors' form. kvpress's TOVAPress has no decode_chunk and always keeps the
    last token, which costs another one its place where its own weight is not among the highest.

    Source: Oren et al., Transformers are Multi-State RNNs, arXiv:2401.06104; the authors' code.
    """

    budget: Count = 1024
    chunk: Count | None = 512
    local: Natural | None = None
    positions: Positions = "original"
    decode_chunk: Count | None = 1
    by_layer: ByLayer = "uniform"
    weigh: Weigh = "uniform"

    name = "tova"
    source = "arXiv:2401.06104"

    @property
    def score(self) -> Score:
        return Score("attention", voters=1, votes=over_all_heads, outputs=self.weigh == "output")

    def choose(self, cache: LayerCache, moment: Moment, beside: int, kept: int) -> Tensor:
        """[kept]: KV heads have the same scores."""
        if moment.outputs is not None:
            moment = replace(moment, outputs=moment.outputs.mean(0))
        return super().choose(cache, moment, beside, kept)[0]


def over_all_heads(weights: Tensor) -> Tensor:
    """The attention that rows give units, [1, units]; weights: as of `attention_sums`."""
    return weights.mean((1, 2)).sum(0)[None]
