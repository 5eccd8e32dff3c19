"""InfLLM: the window, and of all before it the blocks whose vectors match the current queries best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from winnow.cache.view import View
from winnow.parameters import Count, Natural
from winnow.policies.base import ModelShape, Services
from winnow.policies.read.base import Blocks, Observed, Probe, Reader, ReadPolicy, Row

FLOAT = 4  # bytes of a score, and of a value of a block's vector


@dataclass(frozen=True)
class InfLLM(ReadPolicy):
    """Read the recent units, and of those before them the first ones and the blocks that the query matches best.

    recent: last units that are read at their true distances, the current one included: what is farther stands at the
    distance recent - 1, however far it is, so that no more than `recent` positions of the model are used and a text may
    be longer than these. sink: first units, always read. block: units of a block; top: blocks that are read.
    representatives: units of a block whose keys make its vector. rows: of a prompt, that choose blocks together.

    A row at position i sees position p at distance i - p < recent as in full attention, and all else as if at distance
    recent - 1: with its query rotated at recent - 1, and the key at 0. One softmax goes over both. After T tokens those
    of the positions from `sink` on that are out of the window of token T - 1 are cut into (T - recent - sink) // block
    blocks. The vector of a block is, for every query head, the mean key, as at rope position 0, of the
    `representatives` tokens that got most attention of that head while they were in the window, summed over rows. Rows
    choose by q . vector, summed over all query heads, q being the mean of their queries at recent - 1: the `top` blocks
    with the highest sums, the same for all heads of a layer. A row of a decode step chooses alone, those of a prompt
    `rows` at a time, counted from its start, with the blocks there are before them. Read besides are the first `sink`
    units and what has left the window and is in no block yet.

    A row at position i whose group begins with token T reads per query head, with B = (T - recent - sink) // block
    blocks (0 if that is less), i + 1 - max(0, B - top) block units: that is what `units_read` and `pairs_read` count in
    a layer without a sliding window; of those with one, all that it holds is read. In a text of at most `recent` tokens
    that is full attention. Every unit is kept: with the store `mapped`, in files. Held besides (`aux_bytes`) are the
    vectors, and a score for each token, of those that are in no block yet. The vectors that a step compares are not in
    `units_read`: each has the values of 1 / 2 unit for every query head.

    The paper's scores are products of queries and keys, and its code's attention: this follows the code, but counts no
    pair twice that is still in the window for one of the rows, and the last token of a prompt is one of its rows.

    Source: Xiao et al., InfLLM, arXiv:2402.04617, and the authors' code, whose settings for Llama-3 these are.
    """

    recent: Count = 4096
    sink: Natural = 128
    block: Count = 128
    top: Count = 16
    representatives: Count = 4
    rows: Count = 512

    name = "infllm"
    source = "arXiv:2402.04617"
    off: ClassVar = {"recent": 1_000_000_000}
    trial: ClassVar = {"recent": 6, "sink": 2, "block": 4, "top": 2, "representatives": 2, "rows": 4}

    def check(self) -> None:
        self.require(
            self.representatives <= self.block,
            f"representatives={self.representatives} are more than the units of a block, block={self.block}; use at "
            f"most that many",
        )

    @property
    def whole(self) -> int:
        return self.rows

    @property
    def reach(self) -> int:
        return self.recent

    def blocks(self, tokens: int) -> int:
        """How many there are after so many tokens."""
        return max(0, tokens - self.recent - self.sink) // self.block

    def scored(self, tokens: int) -> int:
        """For how many units there is room for scores when the last of so many tokens has been scored."""
        most, grows = self.recent + self.block - 1 + self.rows, min(self.rows, self.block)
        return -(-max(0, min(tokens - self.sink, most)) // grows) * grows

    def bound(self, shape: ModelShape, prompt: int, new: int) -> int:
        tokens = prompt + new
        values = self.scored(tokens) + self.blocks(tokens) * shape.head_dim
        return FLOAT * shape.windows.count(None) * shape.q_heads * values

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> Reader:
        return InfLLMReader(self, shape.q_heads)


class InfLLMReader(Reader):
    """What is known of every layer without a sliding window."""

    def __init__(self, policy: InfLLM, heads: int) -> None:
        self._policy, self._heads = policy, heads
        self._known: dict[int, Known] = {}

    def select(self, row: Row, views: list[View]) -> Sequence[View | Blocks]:
        policy, first, stop = self._policy, row.position + 1 - row.rows, row.position + 1
        if row.window is not None or stop <= policy.recent:
            return views
        [view] = views
        known, left = self._of(row.layer), max(0, first + 1 - policy.recent)
        far = replace(view.between(0, left), query_limit=policy.recent - 1)
        known.cut(far, policy.blocks(first))
        read: list[View | Blocks] = [far] if left else []
        if len(known.vectors) > policy.top:
            read = [Blocks(far, policy.sink, policy.block, policy.top, known.vectors)]
        if row.rows > 1:
            leaving = row.nearer(view.between(left, stop - policy.recent))  # in the window of some rows
            order = leaving.positions + policy.recent
            read.append(replace(leaving, order=order, past=None, query_limit=policy.recent - 1))
        recent = view.between(left, stop)
        return [*read, recent if row.rows == 1 else replace(recent, window=policy.recent)]

    def wants(self, row: Row, views: list[View]) -> Probe | None:
        return "mass" if row.window is None else None

    def observe(self, row: Row, views: list[View], observed: Observed) -> None:
        assert observed.mass is not None
        self._of(row.layer).score(row.position + 1, observed.mass(len(views) - 1))

    @property
    def nbytes(self) -> int:
        return sum(known.scores.nbytes + known.vectors.nbytes for known in self._known.values())

    def _of(self, layer: int) -> "Known":
        return self._known.setdefault(layer, Known(self._policy, self._heads))


class Known:
    """Of one layer the vectors of its blocks, [blocks, q_heads, head_dim], and the attention that units behind them
    have got in the window, [q_heads, room]; float32."""

    def __init__(self, policy: InfLLM, heads: int) -> None:
        self._policy = policy
        self.vectors = torch.zeros(0, heads, 0, dtype=torch.float32)
        self.scores = torch.zeros(heads, 0, dtype=torch.float32)

    @property
    def _first(self) -> int:
        """The position of the first unit that has a score."""
        return self._policy.sink + len(self.vectors) * self._policy.block

    def score(self, stop: int, mass: Tensor) -> None:
        """Add the attention that the units before position `stop` got, [q_heads, units]."""
        self.scores = self.scores.to(mass.device)
        if (room := self._policy.scored(stop)) > self.scores.shape[1]:
            self.scores = _widened(self.scores, room)
        mass = mass[:, max(0, self._first - (stop - mass.shape[1])) :]
        end = stop - self._first
        self.scores[:, end - mass.shape[1] : max(0, end)] += mass

    def cut(self, far: View, blocks: int) -> None:
        """Make vectors, up to so many, of units whose keys stand at rope position 0."""
        new = blocks - len(self.vectors)
        if new <= 0:
            return
        policy, size, room = self._policy, new * self._policy.block, self.scores.shape[1]
        keys = far.between(self._first, self._first + size).keys.float()
        keys = keys.repeat_interleave(len(self.scores) // len(keys), 0).unflatten(1, (new, -1))
        scores = _widened(self.scores.to(keys.device), max(size, room))  # some units came by no row
        best = scores[:, :size].unflatten(1, (new, -1)).topk(policy.representatives).indices
        made = keys.gather(2, best[..., None].expand(-1, -1, -1, keys.shape[-1])).mean(2).transpose(0, 1)
        self.vectors = torch.cat((self.vectors, made)) if len(self.vectors) else made.contiguous()
        self.scores = _widened(scores[:, size:], room)


def _widened(scores: Tensor, room: int) -> Tensor:
    """Scores of so many units, those of new ones 0."""
    return torch.nn.functional.pad(scores, (0, room - scores.shape[1]))
