"""The prefill of a whole prompt: Winnow under plans, in chunks, against the stock model in one forward."""

from collections.abc import Sequence
from functools import partial

import torch
from transformers import DynamicCache

from benchmarks.shapes import Shape
from benchmarks.speed import STOCK, Measurement, alternate
from winnow import LLM, Plan


def measure_prefill(
    llm: LLM, shape: Shape, plans: Sequence[Plan], length: int, *, repeats: int, warmup: int
) -> tuple[list[Measurement], list[float]]:
    """All arms for a prompt of `length` random tokens, and how far the logits of each after it are from stock's.

    The FLOPs are those of full attention, so the floor is full attention's too.
    """
    model = llm.model
    ids = torch.randint(shape.vocab, (length,), generator=torch.Generator().manual_seed(0))
    tokens, batch = ids.tolist(), ids[None].to(llm.device)
    logits: dict[str, torch.Tensor] = {}

    def run_winnow(plan: Plan) -> None:
        with llm.session(plan=plan, max_tokens=1) as session:
            [logits[str(plan)]] = session.feed(tokens)

    @torch.inference_mode()
    def run_stock() -> None:
        cache = DynamicCache(config=model.config)
        out = model(input_ids=batch, cache=cache, use_cache=True, logits_to_keep=1)
        logits[STOCK] = out.logits[0, -1].float()

    arms = {STOCK: run_stock} | {str(plan): partial(run_winnow, plan) for plan in plans}
    seconds = alternate(arms, repeats=repeats, warmup=warmup, device=llm.device)
    weights = shape.layers * shape.layer_weights
    flops = 2 * weights * length + 2 * shape.head_weights + attention_flops(shape, length)
    read_bytes = (weights + shape.head_weights) * llm.dtype.itemsize
    measured = [Measurement(arm, length, seconds[arm], read_bytes, flops) for arm in arms]
    return measured, [(logits[STOCK] - logits[arm]).abs().max().item() for arm in arms]


def attention_flops(shape: Shape, length: int) -> int:
    """Both products of causal attention over `length` tokens, full attention in every layer."""
    pairs = length * (length + 1) // 2
    return 4 * shape.head_dim * shape.q_heads * pairs * shape.layers
