"""What every prefill policy is, and what it is told of the rows that it chooses for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from winnow.kernels.sparse import Cells
from winnow.policies.base import Policy, Services

Block = Annotated[int, Interval(ge=1, le=4096)]  # what is made of one grows with its square, however short a text is
TOGETHER = 32  # rows whose attention to all units is looked at together


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a prompt in one layer, whose units are the last ones that the layer holds.

    queries: [q_heads, rows, head_dim], keys: [kv_heads, units, head_dim], as they attend. scale, softcap: of the
    layer's logits; sinks: [q_heads], a logit beside the units. Units have places, in order of position; those of tokens
    that have been evicted have none.
    """

    layer: int
    queries: Tensor
    keys: Tensor
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.queries.shape[1]

    @property
    def units(self) -> int:
        return self.keys.shape[1]

    @property
    def past(self) -> int:
        """Units of before these rows."""
        return self.units - self.rows

    def front(self, block: int) -> int:
        """How many units the first block of keys lacks, where blocks are counted back from the first row's unit."""
        return -self.past % block

    def causal(self, block: int) -> Tensor:
        """[blocks of rows, blocks of units] bool: which begin no later than the rows' own."""
        rows, units = -(-self.rows // block), -(-(self.units + self.front(block)) // block)
        own = torch.arange(units - rows, units, device=self.keys.device)
        return torch.arange(units, device=self.keys.device) <= own[:, None]

    def everything(self, block: int) -> Cells:
        """All that is before the rows."""
        seen = self.causal(block).expand(len(self.queries), -1, -1)
        return Cells(seen, block, block, self.front(block))

    def attention_of_last(self, count: int) -> tuple[Tensor, Tensor]:
        """How the last `count` rows attend to all units before them, summed over the rows by unit, and by distance from
        them, 0 first: [q_heads, units] float32 each."""
        ahead = torch.ones(count, count, dtype=torch.bool, device=self.keys.device).triu(1)
        heads, units = len(self.queries) // len(self.keys), self.units
        columns = self.keys.new_zeros(len(self.keys), heads, units, dtype=torch.float32)
        far = self.keys.new_zeros(len(self.keys), heads, units + count - 1, dtype=torch.float32)
        # Some rows of a KV head at a time: the attention of all of them is in no cache.
        for queries, keys, column, sums in zip(
            self.queries.chunk(len(self.keys)), self.keys, columns, far, strict=True
        ):
            last = queries[:, -count:]
            for first in range(0, count, TOGETHER):
                weights = self.logits(last[:, first : first + TOGETHER], keys[None])
                weights = self.capped(weights)
                weights[..., -count:].masked_fill_(ahead[first : first + TOGETHER], float("-inf"))
                weights = weights.softmax(-1)
                column += weights.sum(1)
                for row in range(weights.shape[1]):  # what lies ahead of it comes last, and is nothing
                    sums[:, count - 1 - first - row :][:, :units] += weights[:, row]
        return columns.flatten(0, 1), far[..., :units].flip(-1).flatten(0, 1)

    def attention(self, count: int) -> Tensor:
        """How each of the last `count` rows attends to all units: [q_heads, rows, units] float32; what goes to sinks is
        missing from the sum of 1."""
        logits = self.capped(self.logits(self.queries[:, -count:]))
        seen = torch.ones(logits.shape[1:], dtype=torch.bool, device=logits.device).tril(self.units - logits.shape[1])
        logits = logits.masked_fill(~seen, float("-inf"))
        if self.sinks is None:
            return logits.softmax(-1)
        beside = self.sinks.float()[:, None, None].expand(-1, logits.shape[1], 1)
        return torch.cat((logits, beside), -1).softmax(-1)[..., :-1]

    def capped(self, logits: Tensor) -> Tensor:
        """The layer's own, of those of `logits`."""
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def logits(self, queries: Tensor, keys: Tensor | None = None) -> Tensor:
        """[q_heads, rows, head_dim] by [kv_heads, units, head_dim] (None: all keys) -> [q_heads, rows, units] float32,
        the products as the model's dtype has them, scaled."""
        keys = self.keys if keys is None else keys
        grouped = queries.reshape(len(keys), -1, queries.shape[-1])
        return (grouped @ keys.mT).float().mul_(self.scale).view(len(queries), -1, keys.shape[1])


Chooser = Callable[[Piece], Cells]


class PrefillPolicy(Policy):
    """Which of the kept units rows of a prompt read, in layers that every token reaches and that have no window.

    whole: so many tokens of a prompt, or multiples of it, go through the layers together, counted from the last time
    at which units were evicted or changed; but for the last ones. looks: of so many rows at most it looks at how they
    attend to all units at once, before it chooses.
    """

    verb = "prefill"

    @property
    def whole(self) -> int:
        return 1

    @property
    def looks(self) -> int:
        return 0

    def next_end(self, known: int) -> int | None:
        """After how many tokens of a prompt the next ones are chosen for anew: steps never go across; None: never."""
        return None

    def chooser(self, services: Services) -> Chooser | None:
        """What says what rows read; None: everything."""
        return None


class Blocked(PrefillPolicy):
    """Base of the policies that choose by blocks; their fields have these names.

    block: rows, and units, of a block.
    """

    block: int

    @property
    def whole(self) -> int:
        return self.block

    @property
    def looks(self) -> int:
        return self.block


class Chunked(Blocked):
    """Base of those that choose for a chunk of a prompt at once: so many tokens, whole blocks."""

    chunk: int

    def check(self) -> None:
        self.require(
            self.chunk % self.block == 0,
            f"chunk={self.chunk} is not a whole number of blocks of block={self.block}; "
            f"use chunk={max(1, round(self.chunk / self.block)) * self.block}",
        )

    @property
    def whole(self) -> int:
        return self.chunk

    def next_end(self, known: int) -> int:
        return (known // self.chunk + 1) * self.chunk


def pooled(x: Tensor, block: int, front: int = 0) -> Tensor:
    """Means over blocks, [heads, n, width] -> [heads, blocks, width] float32; `front` are missing from the first."""
    heads, n, width = x.shape
    blocks = -(-(n + front) // block)
    filled = torch.nn.functional.pad(x, (0, 0, front, blocks * block - front - n))
    sums = filled.view(heads, blocks, block, width).sum(2, dtype=torch.float32)
    count = torch.full((blocks,), float(block), dtype=torch.float32, device=x.device)
    count[0] -= front
    count[-1] -= blocks * block - front - n
    return sums / count[:, None]


def best(scores: Tensor, count: int, first: int) -> Tensor:
    """[heads, n] bool: the first `first` of them and the highest others, `count` in all; of equals the earlier ones."""
    heads, n = scores.shape
    ranked = scores.clone()
    ranked[:, :first] = torch.inf
    index = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return torch.zeros(heads, n, dtype=torch.bool, device=scores.device).scatter_(-1, index, True)
