"""StreamingLLM: attention sinks and a recent window."""

from dataclasses import dataclass
from typing import ClassVar

from winnow.cache.pattern import ALL, All, SinkWindow
from winnow.parameters import Natural
from winnow.policies.base import LayerContext
from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import KeepPolicy


@dataclass(frozen=True)
class Streaming(KeepPolicy):
    """Keep the first `sink` tokens and the last `recent`; forget the rest.

    sink: first tokens of the text that always stay, in tokens.
    recent: last tokens that stay, the current one included, in tokens.

    A row at position `i` sees the sinks and the positions `(i - recent, i]`, whatever the size of the prefill chunk it
    came in; the cache holds at most `sink + recent + chunk` units per KV head. Rope positions are compact as in the
    paper: recent units stand at their true distances, and the sinks right before the window, that is, a query sees
    them from rope position `min(i, sink + recent - 1)`. Layers whose own sliding window is smaller than
    `sink + recent` keep that window instead. In layers that only some tokens reach, the same positions are kept and
    seen, as far as they are there.

    The authors' code evicts before a forward of several tokens, so the earlier rows of a chunk see less there than
    they would one by one; here they see the same.

    Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453, section 3.2.
    """

    sink: Natural = 4
    recent: int = 1024

    name = "streaming"
    source = "arXiv:2309.17453, section 3.2"
    off: ClassVar = {"recent": 1_000_000_000}
    trial: ClassVar = {"sink": 3, "recent": 9}

    def check(self) -> None:
        self.require(self.recent >= 1, f"recent={self.recent} must be at least 1: a row sees at least itself")

    @property
    def compact(self) -> bool:
        return True

    def pattern(self, layer: LayerContext) -> All:
        governs = layer.window is not None and layer.window < self.sink + self.recent
        return ALL if governs else SinkWindow(self.sink, self.recent)

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """All: what a row sees depends on its position alone, in decode steps as in a prompt."""
        return n
