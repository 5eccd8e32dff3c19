"""Random token drop: a random share of the prompt never reaches the model."""

import random
from dataclasses import dataclass
from typing import ClassVar

from winnow.parameters import Natural, Share
from winnow.policies.base import Services
from winnow.policies.compute.schedule import survivors
from winnow.policies.prompt.base import PromptPolicy


@dataclass(frozen=True)
class RandomDrop(PromptPolicy):
    """Drop prompt tokens at random before the model sees them (a control).

    keep: share of the prompt tokens that stay, (0, 1]; rounded up.
    seed: picks the subset, together with the length of the prompt and nothing else; 0 or more. Papers average over a
        few seeds.

    The first and the last prompt token always stay and count in the share. What stays is a shorter prompt: positions
    are renumbered. `prompt_tokens`, `rows_full` and `units_full` still count the
    prompt as it was given.

    Source: a baseline of Fu et al., LazyLLM, arXiv:2407.14057, section 5 (as in Yao et al., arXiv:2211.11586). The
    paper gives neither shares nor protected tokens; a uniformly random subset of a counted size is our reading.
    """

    keep: Share = 0.5
    seed: Natural = 0

    name = "random_drop"
    source = "arXiv:2407.14057, section 5"
    off: ClassVar = {"keep": 1.0}
    trial: ClassVar = {"keep": 0.6, "seed": 1}

    def shorten(self, ids: list[int], services: Services) -> list[int]:
        ends = sorted({0, len(ids) - 1})
        count = survivors(len(ids), self.keep, least=len(ends))
        # A generator of its own: the choice must not depend on what else has drawn numbers.
        between = random.Random(self.seed).sample(range(1, len(ids) - 1), count - len(ends))
        return sorted(ends + between)
