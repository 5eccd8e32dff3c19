"""What no heads can beat: the labels themselves as scores, `python -m recipes.locret.oracle --json FILE`.

Once of the question that will be asked, and for key-value pairs once of many that could be, which is what heads that
have not seen the question have to be ready for.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow import LLM, Plan, SamplingParams
from winnow.evaluation.accuracy import wilson
from winnow.evaluation.evaluate import environment
from winnow.learn.labels import Sample, label
from winnow.policies.base import Services
from winnow.policies.keep.base import UnitScorer
from winnow.policies.keep.locret import Locret
from winnow.tasks import Example, render, task
from winnow.tasks.kv import pair, question

from .arms import FOUR, SHARES
from .run import MODEL

ASKED = 200  # pairs that are asked about, where any could be


@dataclass(frozen=True)
class Oracle(Locret):
    """Locret with scores that are known beforehand. targets: per layer, [kv_heads, tokens]."""

    targets: object = ()

    def scorer(self, services: Services) -> UnitScorer:
        targets: Any = self.targets
        seen = [0] * len(targets)

        def score(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            start, rows = seen[layer], k.shape[1]
            seen[layer] += rows
            return targets[layer][:, start : start + rows]

        return score


def targets_of(llm: LLM, ids: list[int], context: str, asked: list[tuple[str, str]]) -> list[Tensor]:
    """Per layer, how much the answers to questions about a context want each token of a prompt, [kv_heads, len(ids)].

    asked: questions and replies. What stands behind the context in the prompt itself is not asked for.
    """
    assert llm.tokenizer is not None
    said = _render(llm.tokenizer, context, asked)
    same = next((i for i, (a, b) in enumerate(zip(ids, said, strict=False)) if a != b), min(len(ids), len(said)))
    prompt = min(same, len(ids) - 1)
    found = label(llm.decoder, Sample(said, prompt), length=prompt, chunk=2048).targets
    return [torch.nn.functional.pad(each, (0, len(ids) - prompt), value=-1e9) for each in found]


def measure(llm: LLM, name: str, length: int, examples: int, *, any_question: bool) -> list[dict[str, Any]]:
    """The score of a task at every budget, and at one that keeps everything."""
    assert llm.tokenizer is not None
    budgets = [length, *(length // share for share in SHARES)]  # the first keeps everything
    scores: dict[int, list[float]] = {budget: [] for budget in budgets}
    for index in track(range(examples), name):
        example = task(name).example(random.Random(f"oracle {index}"), tokens=length, tokenizer=llm.tokenizer)
        ids = render(example, llm.tokenizer)
        asked = _all_pairs(example, index) if any_question else [(example.question, example.reply)]
        targets = targets_of(llm, ids, example.context, asked)
        for budget in budgets:
            plan = Plan(keep=Oracle(budget=budget, targets=targets))
            [out] = llm.generate([ids], SamplingParams(max_tokens=example.max_tokens), plan=plan)
            scores[budget].append(task(name).score(example, out.text))
    made = []
    for budget, each in scores.items():
        score = sum(each) / examples
        low, high = wilson(score, examples)
        made.append(
            {"task": name, "length": length, "budget": budget, "any_question": any_question, "examples": examples}
            | {"score": score, "low": low, "high": high}
        )
    return made


def _all_pairs(example: Example, index: int) -> list[tuple[str, str]]:
    pairs = re.findall(r'"([^"]+)": "(\d+)"', example.context)
    chosen = random.Random(index).sample(pairs, min(ASKED, len(pairs)))
    return [(question(key), pair(key, value)) for key, value in chosen]


def _render(tokenizer: PreTrainedTokenizerBase, context: str, asked: list[tuple[str, str]]) -> list[int]:
    messages = []
    for place, (wording, reply) in enumerate(asked):
        content = f"{context}\n\n{wording}" if place == 0 else wording
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": reply}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def main() -> None:
    """Parse the flags; measure, and print or write the records."""
    parser = argparse.ArgumentParser(prog="python -m recipes.locret.oracle", description=__doc__)
    parser.add_argument("--length", type=int, default=4096, help="prompt tokens; default %(default)s")
    parser.add_argument("--examples", type=int, default=20, help="of each task; default %(default)s")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    llm = LLM(MODEL)
    records = [each for name in FOUR for each in measure(llm, name, flags.length, flags.examples, any_question=False)]
    records += measure(llm, "kv", flags.length, flags.examples, any_question=True)
    text = json.dumps({"records": records, "environment": environment(llm, MODEL)}, indent=1) + "\n"
    if flags.json:
        flags.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
