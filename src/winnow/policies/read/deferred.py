"""Work on tensors that need not be done before the next layer."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class Deferred:
    """Runs work beside the layers of a step: on a second CUDA stream, while the next layers compute.

    Elsewhere there is nothing to overlap with, and it runs at once.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._running: list[torch.cuda.Event] = []

    def submit(self, reads: Iterable[Tensor], work: Callable[[], None]) -> None:
        """Do `work`, which reads tensors that were just computed; what it writes is there after `wait`."""
        tensors = list(reads)
        device = tensors[0].device
        if device.type != "cuda":
            work()
            return
        stream = self._streams.setdefault(device, torch.cuda.Stream(device))
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            work()
            done = torch.cuda.Event()
            done.record(stream)
        for tensor in tensors:
            tensor.record_stream(stream)  # their memory is not given to others before
        self._running.append(done)

    def wait(self) -> None:
        """Let what the current stream does from now on come after all the work."""
        for done in self._running:
            done.wait()
        self._running.clear()

    def __deepcopy__(self, memo: object) -> "Deferred":
        return Deferred()
