"""How many tokens of prompts a step may have, so that it takes no longer than it should."""

from winnow.kernels.packed.weight import ROWS

FIRST = 16  # tokens of the first step: what steps cost is not known yet
STRIDE = 2.0  # the most by which the number changes from one step to the next
CLOSE = 0.9  # of the time: a step that took less has room for the rest of a tile that it began


class Pace:
    """The number of prompt tokens in a step follows the time that steps take.

    seconds: what a step may take; most: the most tokens.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds, self._most = seconds, most
        self._rows = float(min(FIRST, most))
        self._offered = self._decodes = 0
        self._others_s = 0.0  # what a step takes that has no tokens of prompts, about

    def offer(self, decodes: int) -> int:
        """How many tokens of prompts the next step may have beside so many decode rows, at least 1.

        Rows are computed in whole tiles, so one that is begun is better filled.
        """
        rows, self._decodes = int(self._rows), decodes
        whole = (decodes + rows) // ROWS * ROWS - decodes
        self._offered = max(1, whole if whole > 0 else rows)
        return self._offered

    def note(self, rows: int, seconds: float) -> None:
        """A step with so many tokens of prompts has taken so long; only one that used what it had asks for more.

        What tokens of prompts take is what steps take beyond those that had none, so that few of them, of which the
        next would cost little, are not taken for what the rest of the step costs. The first of a tile takes nearly as
        long as a whole one.
        """
        if not rows:
            self._others_s = seconds
            return
        others = min(self._others_s, 0.9 * self._seconds, seconds)
        wanted = rows * (self._seconds - others) / max(seconds - others, 1e-9)
        if seconds < CLOSE * self._seconds:
            wanted = max(wanted, -(-(self._decodes + rows) // ROWS) * ROWS - self._decodes)
        if wanted < rows or rows >= self._offered:
            self._rows = min(self._most, max(1.0, rows / STRIDE, min(wanted, self._rows * STRIDE)))
