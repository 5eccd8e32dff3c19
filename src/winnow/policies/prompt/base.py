"""What every prompt policy is."""

from winnow.policies.base import Policy, Services


class PromptPolicy(Policy):
    """Which prompt tokens the model gets to see at all."""

    verb = "prompt"

    def shorten(self, ids: list[int], services: Services) -> list[int]:
        """Index of those tokens, ascending, the last one among them; their positions are renumbered."""
        return list(range(len(ids)))
