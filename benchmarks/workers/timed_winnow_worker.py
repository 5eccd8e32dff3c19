"""Winnow under one plan, asked for more than answers; run as a script."""

from collections.abc import Iterator

import beside  # noqa: F401
import numpy as np
import torch
from timing import serve
from winnow_worker import Winnow, array


class Timed(Winnow):
    """With caches that are filled, and logits of a whole text."""

    def logits(self, ids: list[int]) -> Iterator[np.ndarray]:
        """In chunks, as a prompt."""
        yield array(self.llm.logits(ids, plan=self.plan))

    def fill(self, length: int, units: np.ndarray, steps: int) -> None:
        """The same units in every layer; a policy with a budget then keeps the newest."""
        self.llm.tokenizer = None  # there is no text
        self.session = self.llm.session(max_tokens=steps + 1)
        self.session.fill(*torch.from_numpy(np.array(units)).to(self.llm.dtype))


if __name__ == "__main__":
    serve(Timed())
