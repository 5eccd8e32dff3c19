"""How many tokens of prompts a step may have, so that it takes no longer than it should."""

FIRST = 16  # tokens of the first step: what steps cost is not known yet
STRIDE = 2.0  # the most by which the number changes from one step to the next


class Pace:
    """The number of prompt tokens in a step follows the time that steps take.

    seconds: what a step may take; most: the most tokens. rows: the tokens that the next step may have.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds, self._most = seconds, most
        self.rows = min(FIRST, most)

    def note(self, rows: int, seconds: float) -> None:
        """A step with so many tokens of prompts has taken so long; only one that used what it had asks for more."""
        if not rows:
            return
        factor = self._seconds / max(seconds, 1e-9)
        if factor < 1:
            self.rows = max(1, int(self.rows * max(factor, 1 / STRIDE)))
        elif rows >= self.rows:
            self.rows = min(self._most, int(self.rows * min(factor, STRIDE)) + 1)
