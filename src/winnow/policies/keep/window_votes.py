"""Scores that are the votes of the last rows before an eviction, and forgotten after it."""

from winnow.cache.layer import LayerCache
from winnow.policies.keep.base import Moment
from winnow.policies.keep.budgeted import Budgeted


class WindowVotes(Budgeted):
    """Base of the policies with a budget whose last rows before an eviction vote; their fields mean the same.

    window: how many rows vote. Where the eviction before is nearer than that, only the rows since then do.
    """

    window: int

    def check(self) -> None:
        super().check()
        self.require(self.window >= 1, f"window={self.window} must be at least 1: no row would vote")

    @property
    def votes_in_decode(self) -> bool:
        return self.decode_chunk is not None

    def voters(self, first: int, prompt: int) -> int | None:
        end = self.boundary(first, prompt)
        if end is None or end <= self.budget:  # nothing is evicted there
            return None
        return end - self.window

    def compress(self, cache: LayerCache, moment: Moment) -> None:
        super().compress(cache, moment)
        if self.acts(moment.window):
            cache.scale_scores(0.0)
