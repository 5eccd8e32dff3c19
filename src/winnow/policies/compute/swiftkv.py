"""SwiftKV: as POP, with one norm for all projections, for every token, and caches shared by groups of layers."""

from dataclasses import dataclass

from winnow.parameters import Count
from winnow.policies.base import ModelShape
from winnow.policies.compute.base import Deep
from winnow.policies.compute.gates import Gate, Projection
from winnow.policies.compute.pop import Pop


@dataclass(frozen=True)
class SwiftKV(Pop):
    """The units of the layers from K on are projections of x^K, for new tokens too; groups of layers share them.

    cutoff: K, as in `speed`: a count of layers from 1 on, or a share of them up to 1.0.
    share: how many consecutive layers from K on share one cache (AcrossKV); the last group may be smaller.

    The hidden states that enter layer K go through its input norm and the key and value projections of a group, which
    are the means of its layers' own: the start of SwiftKV's training, which is not done here, so this shows what the
    method costs, not its quality. Only the last prompt token and the new tokens go through the layers above, with the
    layers' own queries. Those layers' own projections of these few rows are computed by the model's code and not used.

    Source: Qiao et al., SwiftKV, arXiv:2410.03960.
    """

    share: Count = 1

    name = "swiftkv"
    source = "arXiv:2410.03960"

    def validate(self, shape: ModelShape) -> None:
        super().validate(shape)
        kinds = {(shape.windows[layer], shape.rotations[layer]) for layer in range(self.cut(shape), shape.layers)}
        self.require(
            self.share == 1 or len(kinds) <= 1,
            f"share={self.share}: layers with different windows or rotations share no cache; use share=1",
        )

    def gate(self, shape: ModelShape) -> Gate:
        first, fills = self.cut(shape), {}
        for layer in range(first, shape.layers):
            holder = layer - (layer - first) % self.share
            group = tuple(range(holder, min(holder + self.share, shape.layers)))
            fills[layer] = Projection(group, norm=first, holder=holder, all_rows=True)
        return Gate(first, fills=fills)

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """All: every unit above is a projection, of new tokens too."""
        return n
