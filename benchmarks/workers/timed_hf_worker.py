"""Stock transformers, asked for more than answers; run as a script."""

from collections.abc import Iterator

import beside  # noqa: F401
import numpy as np
from hf_worker import Transformers
from timing import serve

PIECE = 256  # rows of logits at a time


class Timed(Transformers):
    """With caches that are filled, and logits of a whole text."""

    def logits(self, ids: list[int]) -> Iterator[np.ndarray]:
        """In one forward."""
        with self.torch.inference_mode():
            found = self.model(input_ids=self.torch.tensor([ids], device=self.device), use_cache=False).logits[0]
            yield from (rows.float().cpu().numpy() for rows in found.split(PIECE))

    def fill(self, length: int, units: np.ndarray, steps: int) -> None:
        self.kv, self.position = self.new_cache(), length
        layers = self.model.config.num_hidden_layers
        dtype = self.model.dtype
        keys, values = (self.torch.from_numpy(np.array(each)).to(self.device, dtype)[None] for each in units)
        for layer in range(layers):
            self.kv.update(keys, values, layer)


if __name__ == "__main__":
    serve(Timed())
