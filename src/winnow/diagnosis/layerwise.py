"""Sums over a generation, layer by layer: where attention goes, and how much hidden states turn. No map is kept.

What to measure: SPEED, arXiv:2605.06105, layer-wise diagnostics, whose text gives no formulas. Curvature: Hénaff et al.
2021 (doi:10.1038/s41467-021-25939-z), Hosseini and Fedorenko 2023 (arXiv:2311.04930).
"""

import torch
from torch import Tensor

from winnow.runtime.observer import Attended, Observer
from winnow.runtime.segment import Segment

MASSES = ("prompt", "bos", "decode", "self")
PHASES = ("prompt", "decode")
LEAST_MASS = 1e-6  # of the prompt, for a row's entropy to mean anything


class Sums:
    """What has been added up over `steps` decode steps, `rows` attention rows (times query heads); float64 on the CPU.

    mass: [layers, 4] in the order of MASSES; entropy: [layers] in nats; evenness: [layers] entropy / ln(tokens seen);
    selective: [layers] prompt mass x (1 - evenness); counted: [layers] the rows behind these three.
    turns, angles: [2, layers + 1] degrees turned and their number, in the order of PHASES; place l is the state that
    enters layer l, the last one what leaves the last layer.
    """

    def __init__(self, layers: int, prompts: int = 0) -> None:
        self.layers, self.prompts = layers, prompts
        self.steps = self.rows = 0
        self.mass = torch.zeros(layers, len(MASSES), dtype=torch.float64)
        self.entropy, self.evenness, self.selective, self.counted = torch.zeros(4, layers, dtype=torch.float64)
        self.turns, self.angles = torch.zeros(2, len(PHASES), layers + 1, dtype=torch.float64)

    def add(self, other: "Sums") -> None:
        """Take in the sums of other prompts."""
        for name, value in vars(other).items():
            if name != "layers":
                setattr(self, name, getattr(self, name) + value)


class Path:
    """The turns of a path through hidden states, fed piece by piece; only its last two points are kept."""

    def __init__(self) -> None:
        self.last: Tensor | None = None

    def extend(self, points: Tensor) -> tuple[float, int]:
        """points: [rows, hidden], the next ones. Returns the degrees turned at the points that are now between two
        others, in all, and how many turns that are; a turn beside two equal points is none.
        """
        path = points if self.last is None else torch.cat((self.last, points))
        self.last = path[-2:].clone()
        moves = path.double().diff(dim=0)
        lengths = moves.norm(dim=-1)
        before, after = lengths[:-1], lengths[1:]
        moved = (before > 0) & (after > 0)
        cosines = (moves[:-1] * moves[1:]).sum(-1)[moved] / before[moved] / after[moved]
        return float(cosines.clamp(-1, 1).arccos().rad2deg().sum()), int(moved.sum())


class LayerObserver(Observer):
    """Adds up one prompt's full-attention generation.

    start: the position of the first decode-phase token. Prompt tokens are those before it, without position 0, which
    counts as BoS whatever token stands there. Memory: one row of attention, and two hidden states per layer and phase.
    """

    def __init__(self, layers: int, start: int) -> None:
        self.start = start
        self.sums = Sums(layers, prompts=1)
        self._paths = [[Path() for _ in range(layers + 1)] for _ in PHASES]

    def entered(self, layer: int, segment: Segment, hidden: Tensor) -> None:
        begin, border = (min(max(place - segment.first, 0), len(hidden)) for place in (1, self.start))
        for phase, rows in enumerate((hidden[begin:border], hidden[border:])):
            if len(rows):
                turned, count = self._paths[phase][layer].extend(rows)
                self.sums.turns[phase, layer] += turned
                self.sums.angles[phase, layer] += count

    def attended(self, attended: Attended) -> None:
        if not attended.part.decode:
            return
        weights, positions = attended.weights()  # [q_heads, units], [units]
        current = attended.part.positions[-1]
        prompt = (positions > 0) & (positions < self.start)  # of a window, what it still holds
        decode = (positions >= self.start) & (positions < current)
        groups = torch.stack((prompt, positions == 0, decode, positions == current))  # [4, units]
        mass = (weights[:, None] * groups).sum(-1, dtype=torch.float64)  # [q_heads, 4]
        surprise = (torch.special.entr(weights) * prompt).sum(-1, dtype=torch.float64)  # -sum p ln p, [q_heads]
        self._add(attended.layer, mass.cpu(), surprise.cpu(), int(prompt.sum()))

    def _add(self, layer: int, mass: Tensor, surprise: Tensor, seen: int) -> None:
        """One decode step in one layer. mass: [q_heads, 4]; surprise: [q_heads]; seen: prompt tokens that it sees."""
        sums = self.sums
        if layer == 0:
            sums.steps += 1
            sums.rows += len(mass)
        sums.mass[layer] += mass.sum(0)
        counted = (mass[:, 0] >= LEAST_MASS) & (seen > 1)
        if not counted.any():
            return
        on_prompt = mass[counted, 0]
        # Of p / m, where m is the sum of p: ln m + (-sum p ln p) / m.
        entropy = (on_prompt.log() + surprise[counted] / on_prompt).clamp(min=0)
        evenness = entropy / torch.tensor(seen, dtype=torch.float64).log()
        sums.counted[layer] += len(entropy)
        sums.entropy[layer] += entropy.sum()
        sums.evenness[layer] += evenness.sum()
        sums.selective[layer] += (on_prompt * (1 - evenness)).sum()
