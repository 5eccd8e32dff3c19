"""One decode step after many cached tokens: Winnow under a plan against the stock model, the same weights and units.

Both caches are filled with the same random units instead of prefilling, which at 32768 tokens would take minutes; the
logits of the two must then agree, which is checked.
"""

from collections.abc import Callable

import torch
from transformers import DynamicCache, PreTrainedModel

from winnow.bench.shapes import Shape
from winnow.bench.speed import STOCK, Measurement, alternate
from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.forward import decode
from winnow.runtime.sequence import Sequence, new_sequence

CHUNK = 512
TOKEN = 1


def measure_decode(
    decoder: Decoder, shape: Shape, plan: Plan, length: int, *, repeats: int, warmup: int
) -> tuple[list[Measurement], float]:
    """Both arms at `length` cached tokens, and the largest difference of their first logits (0 is perfect).

    The caches grow by a token with every repeat.
    """
    model = decoder.model
    state = new_sequence(decoder, plan, length, length + warmup + repeats + 1, CHUNK)
    stock = DynamicCache(config=model.config)
    fill(decoder, state, stock, length)
    winnow_step, stock_step = _winnow_step(decoder, state), _stock_step(model, stock)
    difference = (winnow_step() - stock_step()).abs().max().item()
    before, steps = state.stats.units_read, warmup + repeats
    seconds = alternate(
        {STOCK: stock_step, str(plan): winnow_step}, repeats=repeats, warmup=warmup, device=decoder.device
    )
    unit_bytes = decoder.shape.unit_bytes
    units = {
        # The counted steps read length + 2 to length + 1 + steps: the first step was the one above.
        STOCK: shape.layers * shape.kv_heads * (2 * length + 3 + steps) // 2,
        str(plan): (state.stats.units_read - before) // steps,
    }
    weights = shape.layers * shape.layer_weights + shape.head_weights
    measured = [
        Measurement(
            arm=arm,
            length=length,
            seconds=seconds[arm],
            read_bytes=weights * decoder.dtype.itemsize + units[arm] * unit_bytes,
            flops=2 * weights + 4 * shape.head_dim * units[arm] * shape.q_heads // shape.kv_heads,
        )
        for arm in seconds
    ]
    return measured, difference


@torch.inference_mode()
def fill(decoder: Decoder, state: Sequence, stock: DynamicCache, length: int) -> None:
    """Give both caches the same `length` random units, every layer alike; the plan evicts as in a prefill."""
    shape, device = decoder.shape, decoder.device
    size = (2, shape.kv_heads, length, shape.head_dim)
    generator = torch.Generator(device).manual_seed(0)
    keys, values = torch.empty(size, dtype=decoder.dtype, device=device).normal_(generator=generator)
    for layer, cache in enumerate(state.caches):
        stock.update(keys[None], values[None], layer)
        for start in range(0, length, CHUNK):
            rows = slice(start, min(start + CHUNK, length))
            positions = torch.arange(rows.start, rows.stop, device=device)
            cache.append(keys[:, rows], values[:, rows], positions)
            state.plan.keep.evict(cache, shape.windows[layer])
    state.position = length


def _winnow_step(decoder: Decoder, state: Sequence) -> Callable[[], torch.Tensor]:
    return lambda: decode(decoder, [(state, TOKEN)])[0]


def _stock_step(model: PreTrainedModel, cache: DynamicCache) -> Callable[[], torch.Tensor]:
    ids = torch.tensor([[TOKEN]], device=model.device)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].float()

    return step
