"""Listings that the model would not write by itself: the reply is fed to it, and its predictions are scored."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError
from winnow.evaluation.evaluate import Case
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.stats import Stats
from winnow.tasks import Example

VALUE = re.compile(r"\d+(?=\D*\Z)")  # of an answer: its last number


@dataclass(frozen=True)
class Reply:
    """The tokens of a listing, and for each answer which of them its value is made of."""

    tokens: list[int]
    values: list[range]


def reply_of(example: Example, tokenizer: PreTrainedTokenizerBase) -> Reply:
    """The reply of an example whose answers stand in it in order, each with a number at its end."""
    encoded = tokenizer(example.reply, add_special_tokens=False, return_offsets_mapping=True)
    places: list[tuple[int, int]] = encoded["offset_mapping"]
    values, after = [], 0
    for answer in example.answers:
        found, start = VALUE.search(answer), example.reply.find(answer, after)
        if found is None or start < 0:
            raise InputError(f"{answer!r} has no number, or does not stand in the reply after the answer before it")
        begin, end, after = start + found.start(), start + found.end(), start + len(answer)
        inside = [index for index, (first, last) in enumerate(places) if first < end and last > begin]
        values.append(range(inside[0], inside[-1] + 1))
    return Reply(encoded["input_ids"], values)


@torch.inference_mode()
def forced(llm: LLM, plan: Plan, case: Case) -> tuple[tuple[bool, ...], Stats]:
    """Whether the model predicts every token of each value, given the prompt and the reply up to it; and the cost.

    The prompt is prefilled and each token of the reply but the last is a decode step, as when the model writes it.
    """
    assert llm.tokenizer is not None
    reply = reply_of(case.example, llm.tokenizer)
    fed = reply.tokens[:-1]
    with llm.session(plan=plan, max_tokens=len(fed) + 1) as session:
        rows = session.feed(case.ids)
        rows = torch.cat((rows, session.feed(fed))) if fed else rows
        stats = session.stats
    predicted = rows.argmax(-1).tolist()
    hits = [token == wanted for token, wanted in zip(predicted, reply.tokens, strict=True)]
    return tuple(all(hits[index] for index in value) for value in reply.values), stats
