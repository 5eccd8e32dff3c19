"""KeyDiff: keys that are unlike the others stay in a cache of fixed size."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from winnow.policies.keep.base import Moments, Score
from winnow.policies.keep.budgeted import HeadByHead


@dataclass(frozen=True)
class KeyDiff(HeadByHead):
    """Keep the units whose keys point away from the mean direction of all keys that a KV head holds.

    At every eviction the score of a unit is -cos(k, a), where a is the mean of k / ||k|| over the units that its KV
    head holds then: the last chunk's and those kept before, in a window's layer also those that have left it, and where
    tokens stop below a layer those that came. Keys are taken as rows attend to them, rotated at their rope positions.
    Scores are made anew each time, since the mean moves with what is held; what has been evicted counts no more.

    budget: units per KV head that a layer keeps, in tokens.
    chunk: prompt tokens from one eviction to the next, the block of the paper; None: a single one.
    local: last tokens of the prompt that stay beside the budget; None: 100, but no more than the budget and all but
        one of the prompt.
    positions: "original": keys are rotated at their places in the text, as in the paper; "compact": at their places
        among the units held, and a prompt may be longer than the model's positions.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, with as
        many units in all (PyramidKV, arXiv:2406.02069).
    by_head: "uniform": every KV head has the layer's budget; "adaptive": the heads of a layer share theirs by their
        scores, a fifth of it being sure for each (Ada-KV, arXiv:2407.11550). What a head does not keep takes no memory.

    With chunk=None and local=0 this is kvpress's KeyDiffPress. Scores are in float32 whatever the model's type.

    Source: Park et al., KeyDiff, arXiv:2504.15364; kvpress.
    """

    name = "keydiff"
    source = "arXiv:2504.15364"

    @property
    def score(self) -> Score:
        return Score("units", held=unlike_the_mean, cancels=True)


def unlike_the_mean(keys: Tensor, values: Tensor, queries: Moments | None) -> Tensor:
    """-cos(k, mean of k / ||k||), [kv_heads, units]. keys: [kv_heads, units, head_dim]."""
    return -cosine_similarity(keys, normalize(keys, dim=-1).mean(1, keepdim=True), dim=-1)
