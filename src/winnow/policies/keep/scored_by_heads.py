"""What policies have in common whose units are scored by retaining heads."""

from winnow.policies.base import Services
from winnow.policies.keep.base import KeepPolicy, Score, UnitScorer


class ScoredByHeads(KeepPolicy):
    """Base of the policies that rank units by what retaining heads make of their own token's projections.

    heads: a directory or bundled name of them; None: the LLM's own, or the bundled ones of this model.
    """

    heads: str | None

    def check(self) -> None:
        super().check()
        self.require(self.heads != "", "heads='' is no directory; leave heads out for the model's own")

    @property
    def score(self) -> Score:
        return Score("kv", heads=self.scorer, cancels=True)

    def scorer(self, services: Services) -> UnitScorer:
        """The heads. Raises ModelError where the model has none, or others."""
        return services.retaining_heads(self.heads, self.name)
