"""kvpress, asked for more than answers; run as a script, by a Python that has kvpress."""

import beside  # noqa: F401
import numpy as np
from kvpress_worker import Pressed
from timed_hf_worker import Timed
from timing import serve
from wire import Refused


class TimedPress(Pressed, Timed):
    """With caches filled to what the press would keep."""

    def fill(self, length: int, units: np.ndarray, steps: int) -> None:
        """As many units as the press would keep; the first ones, since all are random."""
        import kvpress

        ratio = getattr(self.press, "compression_ratio", None)
        plain = getattr(type(self.press), "compress", None) is kvpress.ScorerPress.compress
        if not plain or not isinstance(ratio, (int, float)):
            raise Refused("how many units this press keeps is not a ratio of the prompt, so its cache cannot be filled")
        super().fill(length, units[:, :, : max(1, int(length * (1 - ratio)))], steps)
        self.position = length


if __name__ == "__main__":
    serve(TimedPress())
