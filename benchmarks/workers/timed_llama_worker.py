"""llama.cpp, asked for more than answers; run as a script, by a Python that has llama-cpp-python."""

import ctypes
from collections.abc import Iterator

import beside  # noqa: F401
import numpy as np
from llama_state import filled_state, read_layout
from llama_worker import UBATCH, LlamaCpp
from timing import serve
from wire import Refused


class Timed(LlamaCpp):
    """With a sequence that is filled, and logits of a whole text."""

    def logits(self, ids: list[int]) -> Iterator[np.ndarray]:
        self._forget()
        for begin in range(0, len(ids), UBATCH):
            piece = ids[begin : begin + UBATCH]
            self._decode(piece, every=True)
            yield np.ctypeslib.as_array(self.lib.llama_get_logits(self.context), (len(piece), self.vocab))

    def fill(self, length: int, units: np.ndarray, steps: int) -> None:
        """The state of one token tells how states are written; one with `length` cells is read in its place."""
        if self.cache != "f16":
            raise Refused(f"units in {self.cache} are not filled in; leave cache= out")
        self.start([1], 0)
        layout = read_layout(self.state())
        heads, head_dim = units.shape[1], units.shape[3]
        keys, values = units
        if self._rotates_neighbours():
            keys = keys.reshape(heads, length, 2, head_dim // 2).swapaxes(2, 3).reshape(keys.shape)
        rows = [each.swapaxes(0, 1).reshape(length, heads * head_dim).astype(np.float16) for each in (keys, values)]
        self.restore(filled_state(layout, [np.stack(rows)] * layout.layers))

    def state(self) -> bytes:
        """The sequence as llama.cpp writes it."""
        buffer = (ctypes.c_uint8 * self.lib.llama_state_seq_get_size(self.context, 0))()
        self.lib.llama_state_seq_get_data(self.context, buffer, len(buffer), 0)
        return bytes(buffer)

    def restore(self, state: np.ndarray) -> None:
        """Put the sequence of `state`, bytes, in place of what is there."""
        self._forget()
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if self.lib.llama_state_seq_set_data(self.context, pointer, len(state), 0) != len(state):
            raise Refused(f"llama.cpp does not read the state made for it: {self._last_words()}")

    def _rotates_neighbours(self) -> bool:
        """Whether a head's pairs are neighbours, as in the Llama family; in others they are its two halves."""
        name = ctypes.create_string_buffer(64)
        self.lib.llama_model_meta_val_str(self.model, b"general.architecture", name, len(name))
        return name.value == b"llama"


if __name__ == "__main__":
    serve(Timed())
