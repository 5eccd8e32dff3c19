"""One decode step after many cached tokens: Winnow under plans against the stock model, the same weights and units.

All caches are filled with the same random units instead of prefilling, which at 32768 tokens would take minutes; the
logits of full attention and of stock must then agree, which is reported.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from transformers import DynamicCache, PreTrainedModel

from benchmarks.shapes import Shape
from benchmarks.speed import STOCK, Measurement, alternate
from winnow import LLM, Plan, Session

TOKEN = 1


def measure_decode(
    llm: LLM, shape: Shape, plans: Sequence[Plan], length: int, *, repeats: int, warmup: int
) -> tuple[list[Measurement], list[float]]:
    """All arms at `length` cached tokens, and how far the first logits of each are from stock's (0 is perfect).

    The caches grow by a token with every repeat.
    """
    units = random_units(llm, length)
    sessions = {str(plan): filled(llm, plan, units, warmup + repeats + 1) for plan in plans}
    step = stock_step(llm.model, stock_cache(llm, units))
    arms: dict[str, Callable[[], torch.Tensor]] = {STOCK: partial(step, TOKEN)}
    arms |= {name: partial(session.feed, [TOKEN]) for name, session in sessions.items()}
    logits = {name: arm().flatten() for name, arm in arms.items()}
    before, steps = {name: session.stats.units_read for name, session in sessions.items()}, warmup + repeats
    seconds = alternate(arms, repeats=repeats, warmup=warmup, device=llm.device)
    # The counted steps read length + 2 to length + 1 + steps: the first step was the one above.
    read = {STOCK: shape.layers * shape.kv_heads * (2 * length + 3 + steps) // 2}
    read |= {name: (session.stats.units_read - before[name]) // steps for name, session in sessions.items()}
    weights = shape.layers * shape.layer_weights + shape.head_weights
    measured = [
        Measurement(
            arm=arm,
            length=length,
            seconds=seconds[arm],
            read_bytes=weights * llm.dtype.itemsize + read[arm] * llm.decoder.shape.unit_bytes,
            flops=2 * weights + 4 * shape.head_dim * read[arm] * shape.q_heads // shape.kv_heads,
        )
        for arm in arms
    ]
    return measured, [(logits[arm] - logits[STOCK]).abs().max().item() for arm in arms]


def random_units(llm: LLM, length: int) -> torch.Tensor:
    """Keys and values [2, kv_heads, length, head_dim], the same every time."""
    shape, generator = llm.decoder.shape, torch.Generator(llm.device).manual_seed(0)
    size = (2, shape.kv_heads, length, shape.head_dim)
    return torch.empty(size, dtype=llm.dtype, device=llm.device).normal_(generator=generator)


def filled(llm: LLM, plan: Plan, units: torch.Tensor, new: int) -> Session:
    """A session that holds `units` in every layer, as the plan would after a prefill, with room for `new` tokens."""
    session = llm.session(plan=plan, max_tokens=new + 1)
    session.fill(*units)
    return session


def stock_cache(llm: LLM, units: torch.Tensor) -> DynamicCache:
    """transformers' cache with `units` in every layer."""
    cache = DynamicCache(config=llm.model.config)
    for layer in range(llm.decoder.shape.layers):
        cache.update(*(each[None].clone() for each in units), layer)
    return cache


def stock_step(model: PreTrainedModel, cache: DynamicCache) -> Callable[[int], torch.Tensor]:
    """A decode step of the stock model: token id -> logits [vocab] float32."""

    @torch.inference_mode()
    def step(token: int) -> torch.Tensor:
        ids = torch.tensor([[token]], device=model.device)
        return model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1].float()

    return step
