"""In which layer a question finds what it asks for: how many tokens of the prompt have to go on to have it among them.

What `fastkv` and `lazyllm` live on: a token goes on by the attention that the last tokens of the prompt pay it in one
layer, or by the most that it is paid in all layers so far, pooled over its neighbours.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.engine.depth import first_that_finds
from winnow.engine.whole import look_at
from winnow.errors import InputError
from winnow.evaluation.evaluate import Case, Progress, cases, silent
from winnow.policies.compute.nearby import best_nearby
from winnow.policies.prefill.base import Piece
from winnow.runtime.llm import LLM
from winnow.tasks import Task

VOTES = ("last", "mean", "max", "all")
MOST = 0.9  # of the prompts, in as many
ENOUGH = 0.1  # of the prompt's tokens: where no more are needed, something is found


@dataclass(frozen=True)
class Needle:
    """One prompt of `tokens` tokens. shares: per layer, by vote, the share of them that has to go on for all tokens of
    the answer to be among them; None in a layer with a sliding window, which is not asked."""

    task: str
    tokens: int
    shares: tuple[dict[str, float] | None, ...]


@dataclass(frozen=True)
class Ranks:
    """How tokens are ranked: by the attention of the last `voters` prompt tokens, pooled over `kernel` tokens, an odd
    count, of which `before` share what one gets that they stand before, as in `fastkv`."""

    voters: int = 32
    kernel: int = 47
    before: int = 7


DEFAULT = Ranks()


@dataclass(frozen=True)
class Share:
    """Over all prompts: the median, and what is enough in `MOST` of them."""

    median: float
    most: float


@dataclass(frozen=True)
class Needles:
    """Of every layer, by vote, `all` being those so far; None where it has a window.

    repeated: per layer, what `winnow.engine.depth.attention_back` tells, by which the defaults of policies go.
    """

    prompts: int
    ranks: Ranks
    layers: tuple[dict[str, Share] | None, ...]
    repeated: tuple[float | None, ...]

    @property
    def first(self) -> tuple[int, str] | None:
        """The lowest layer of those that a prompt may stop above in which `ENOUGH` tokens have it, and by which vote
        the fewest do; None: there is none."""
        for layer, shares in enumerate(self.layers[:-1]):
            if shares is not None:
                vote = min(shares, key=lambda name: shares[name].most)
                if shares[vote].most <= ENOUGH:
                    return layer, vote
        return None

    @property
    def finds(self) -> int | None:
        """The first layer that finds what is repeated; None: there is none, or it is not known."""
        return first_that_finds(self.repeated)

    def to_dict(self) -> dict[str, Any]:
        first = self.first
        told = None if first is None else {"layer": first[0], "votes": first[1]}
        return {**asdict(self), "first": told, "finds": self.finds}


def search_needles(
    llm: LLM,
    tasks: Sequence[Task],
    length: int,
    examples: int,
    *,
    ranks: Ranks = DEFAULT,
    seed: int = 0,
    progress: Progress = silent,
) -> Iterator[Needle]:
    """Read seeded examples under full attention, each prompt in one piece; nothing is answered.

    progress: called with the number of prompt tokens just processed. Raises InputError before any work where a kernel
    is even, an answer does not stand in its prompt, or every layer has a window.
    """
    kernel = ranks.kernel
    if kernel % 2 == 0:
        raise InputError(f"kernel={kernel} must be odd, for a token and neighbours on either side; use {kernel + 1}")
    made = [(case, answer_tokens(llm.tokenizer, case)) for case in cases(llm, tasks, [length], examples, seed=seed)]
    for case, _ in made:
        llm.check([case.ids], case.params, plan="full")
    return (_searched(llm, case, places, ranks, progress) for case, places in made)


def answer_tokens(tokenizer: PreTrainedTokenizerBase | None, case: Case) -> list[int]:
    """The positions of the answer's tokens in a prompt, where it first stands; spaces count for nothing.

    Raises InputError where it does not stand there.
    """
    assert tokenizer is not None
    owners, text = list[int](), ""
    for place, token in enumerate(case.ids):
        part = _squeezed(str(tokenizer.decode([token])))
        text += part
        owners += [place] * len(part)
    found: set[int] = set()
    for answer in map(_squeezed, case.example.answers):
        start = text.find(answer)
        if start < 0 or not answer:
            raise InputError(
                f"task {case.task}: the answer {answer!r} does not stand in its prompt, so there is nothing to look "
                "for; take a task with a needle, such as passkey, number or niah_single"
            )
        found.update(owners[start : start + len(answer)])
    return sorted(found)


def summarise_needles(found: Sequence[Needle], ranks: Ranks, repeated: Sequence[float | None]) -> Needles:
    """The figures of all prompts together, of which there is at least one. repeated: as in `Needles`."""
    layers = []
    for of_layer in zip(*(each.shares for each in found), strict=True):
        told = [shares for shares in of_layer if shares is not None]
        layers.append({vote: _share([shares[vote] for shares in told]) for vote in VOTES} if told else None)
    return Needles(len(found), ranks, tuple(layers), tuple(repeated))


def _share(values: list[float]) -> Share:
    enough = math.ceil(round(MOST * len(values), 6))  # for so many of them
    return Share(statistics.median(values), sorted(values)[enough - 1])


def _searched(llm: LLM, case: Case, places: list[int], ranks: Ranks, progress: Progress) -> Needle:
    shares: list[dict[str, float] | None] = [None] * llm.decoder.shape.layers
    best = torch.zeros(len(case.ids), dtype=torch.float32, device=llm.device)

    def look(piece: Piece) -> None:
        votes = _votes(piece, ranks.voters)
        votes["all"] = torch.maximum(best, votes["max"], out=best)
        shares[piece.layer] = {vote: needed(each, places, ranks) for vote, each in votes.items()}

    look_at(llm.decoder, case.ids, look)
    progress(len(case.ids))
    return Needle(case.task, len(case.ids), tuple(shares))


def _votes(piece: Piece, voters: int) -> dict[str, Tensor]:
    """By the name of a vote, [units] float32 each."""
    weights = piece.attention(voters)
    return {"last": weights[:, -1].mean(0), "mean": weights.mean((0, 1)), "max": weights.amax(1).mean(0)}


def needed(votes: Tensor, places: Sequence[int], ranks: Ranks) -> float:
    """The share of the tokens that goes on where those at `places` do, the best first, the voters in any case.

    votes: [tokens].
    """
    tokens, voters = len(votes), ranks.voters
    among = torch.arange(tokens, device=votes.device) < tokens - voters
    inside = [place for place in places if place < tokens - voters]
    if not inside:
        return min(voters, tokens) / tokens
    best = best_nearby(votes, among, ranks.kernel, ranks.before)
    return (int((best[among] >= best[inside].min()).sum()) + voters) / tokens


def _squeezed(text: str) -> str:
    return "".join(text.split())
