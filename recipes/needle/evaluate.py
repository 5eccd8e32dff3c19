"""Measure an exported model: tasks at several lengths, held-out perplexity. Run by hand, not during training.

`python -m recipes.needle.evaluate DIR --tokens 4096 8192 --examples 100` prints one JSON line per task and length.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from winnow.tasks import Task, render, task

from .corpus import read_documents, tokenise

GENERATED = ("passkey", "number", "kv", "multi_needle", "variables")


@torch.inference_mode()
def answer(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, ids: list[int], limit: int) -> str:
    """Greedy continuation of at most `limit` tokens."""
    prompt = torch.tensor([ids])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=limit, do_sample=False)
    return tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)


def accuracy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    chosen: Task,
    *,
    tokens: int,
    examples: int,
    seed: int = 0,
) -> dict[str, object]:
    """Mean score over seeded examples with depths spread evenly, and the outputs that were wrong."""
    scores, wrong, start = [], [], time.monotonic()
    for i in range(examples):
        rng = random.Random(f"{seed}/{chosen.name}/{i}")
        example = chosen.example(rng, tokens=tokens, tokenizer=tokenizer, depth=i / max(1, examples - 1))
        said = answer(model, tokenizer, render(example, tokenizer), example.max_tokens)
        scores.append(chosen.score(example, said))
        if scores[-1] < 1:
            wrong.append([round(example.depths[0], 2), example.reply, said])
    seconds = round(time.monotonic() - start, 1)
    mean = sum(scores) / len(scores)
    return {"task": chosen.name, "tokens": tokens, "n": examples, "score": round(mean, 4), "s": seconds, "wrong": wrong}


@torch.inference_mode()
def perplexity(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, val: Path, *, window: int = 2048, windows: int = 48
) -> dict[str, float]:
    """Perplexity per token and bits per byte on windows of each held-out file, spread evenly over it."""
    figures: dict[str, float] = {}
    for path in sorted(val.glob("*.txt.xz")):
        texts = read_documents(path)
        ids = tokenise(texts, tokenizer)
        per_token = sum(len(text.encode()) for text in texts) / len(ids)
        size = min(window, len(ids) - 1)
        total = count = 0.0
        for begin in np.linspace(0, len(ids) - size, windows).astype(int):
            row = torch.from_numpy(ids[begin : begin + size].astype(np.int64))[None]
            logits = model(row).logits[0, :-1].float()
            total += F.cross_entropy(logits, row[0, 1:], reduction="sum").item()
            count += size - 1
        name = path.name.split(".")[0]
        figures[f"{name}_perplexity"] = round(math.exp(total / count), 2)
        figures[f"{name}_bits_per_byte"] = round(total / count / math.log(2) / per_token, 3)
    return figures


def main() -> None:
    """Parse the flags and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m recipes.needle.evaluate", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--tasks", nargs="+", default=list(GENERATED))
    parser.add_argument("--data", type=Path, help="directory of kv_*.jsonl.gz or lines_*.jsonl.gz, for those two tasks")
    parser.add_argument("--val", type=Path, help="directory of held-out *.txt.xz")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(flags.model, trust_remote_code=False)
    model = LlamaForCausalLM.from_pretrained(flags.model, dtype=torch.float32, use_safetensors=True)
    for tokens in flags.tokens:
        for name in flags.tasks:
            chosen = task(name, data=flags.data) if name.endswith("retrieval") else task(name)
            figures = accuracy(model, tokenizer, chosen, tokens=tokens, examples=flags.examples, seed=flags.seed)
            print(json.dumps(figures), flush=True)
    if flags.val:
        print(json.dumps(perplexity(model, tokenizer, flags.val)), flush=True)


if __name__ == "__main__":
    main()
