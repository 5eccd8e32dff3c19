"""kvpress, asked for more than answers; run as a script, by a Python that has kvpress."""

import contextlib
from collections.abc import Iterator
from typing import Any

import beside  # noqa: F401
import numpy as np
import timing
from kvpress_worker import Pressed
from timed_hf_worker import Timed
from wire import Refused


class TimedPress(Pressed, Timed):
    """With caches filled to what the press would keep, and what it does keep."""

    def fill(self, length: int, units: np.ndarray, steps: int) -> None:
        """As many units as the press would keep; the first ones, since all are random."""
        import kvpress

        ratio = getattr(self.press, "compression_ratio", None)
        plain = getattr(type(self.press), "compress", None) is kvpress.ScorerPress.compress
        if not plain or not isinstance(ratio, (int, float)):
            raise Refused("how many units this press keeps is not a ratio of the prompt, so its cache cannot be filled")
        super().fill(length, units[:, :, : max(1, int(length * (1 - ratio)))], steps)
        self.position = length

    def kept(self, ids: list[int], prompt: int, out: str, mask: str) -> dict[str, Any]:
        """`timing.logits` after a prompt; and which of its units are left, to the file `mask`: [layers, kv_heads,
        prompt] bool."""
        with self._watched() as left:
            told = timing.logits(self, ids, out, prompt)
        layers = self.model.model.layers
        found = np.stack([left.get(layer, np.ones((heads(each), prompt), bool)) for layer, each in enumerate(layers)])
        for layer, each in enumerate(layers):
            masked = getattr(each.self_attn, "masked_key_indices", None)
            if masked is not None:
                found[layer, masked[1].cpu().numpy(), masked[2].cpu().numpy()] = False
        np.save(mask, found)
        return told

    @contextlib.contextmanager
    def _watched(self) -> Iterator[dict[int, np.ndarray]]:
        """What the press leaves of each layer's keys, [kv_heads, prompt], filled in as it does so."""
        left, compress = dict[int, np.ndarray](), self.press.compress

        def noted(module: Any, hidden: Any, keys: Any, values: Any, *more: Any) -> Any:
            found = compress(module, hidden, keys, values, *more)
            left[module.layer_idx] = np.stack([among(*each) for each in zip(keys[0], found[0][0], strict=True)])
            return found

        self.press.compress = noted
        try:
            yield left
        finally:
            del self.press.compress


def heads(layer: Any) -> int:
    return int(layer.self_attn.config.num_key_value_heads)


def among(keys: Any, left: Any) -> np.ndarray:
    """Which of the rows `keys` are among `left`, by their bits. Raises Refused where one of `left` is none of them."""
    places = {row.tobytes(): place for place, row in enumerate(keys.float().cpu().numpy())}
    found = np.zeros(len(keys), bool)
    try:
        found[[places[row.tobytes()] for row in left.float().cpu().numpy()]] = True
    except KeyError as error:
        raise Refused("this press changes the keys that it keeps, which therefore cannot be told") from error
    return found


if __name__ == "__main__":
    timing.serve(TimedPress())
