"""Work on tensors that need not be done before the next layer."""

import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class Deferred:
    """Runs work beside the layers of a step: on a second CUDA stream, while the next layers compute.

    Elsewhere there is nothing to overlap with, and it runs at once.
    """

    def __init__(self) -> None:
        self._running: torch.cuda.Event | None = None

    def submit(self, tensors: Iterable[Tensor], work: Callable[[], None]) -> None:
        """Do `work`, which reads and writes these tensors of the current stream; it is done after `wait`."""
        used = list(tensors)
        device = used[0].device
        if device.type != "cuda":
            work()
            return
        stream = _second_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            work()
            self._running = torch.cuda.Event()
            self._running.record(stream)
        for tensor in used:
            tensor.record_stream(stream)  # their memory is not given to others before

    def wait(self) -> None:
        """Let what the current stream does from now on come after all the work."""
        if self._running is not None:
            self._running.wait()  # of one stream, so that the last one comes after all others
            self._running = None

    def __deepcopy__(self, memo: object) -> "Deferred":
        return Deferred()  # whoever copies what the work writes waits for it first


@functools.cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all sequences: work of one never overtakes that of another."""
    return torch.cuda.Stream(device)
