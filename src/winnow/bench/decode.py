"""One decode step after many cached tokens: Winnow under plans against the stock model, the same weights and units.

All caches are filled with the same random units instead of prefilling, which at 32768 tokens would take minutes; the
logits of full attention and of stock must then agree, which is reported.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from transformers import DynamicCache, PreTrainedModel

from winnow.bench.shapes import Shape
from winnow.bench.speed import STOCK, Measurement, alternate
from winnow.plan import Plan
from winnow.policies.keep.base import Moment
from winnow.runtime.decoder import Decoder
from winnow.runtime.forward import decode
from winnow.runtime.scorer import admit
from winnow.runtime.sequence import HEADROOM
from winnow.runtime.sequence import Sequence as State

CHUNK = 512
TOKEN = 1


def measure_decode(
    decoder: Decoder, shape: Shape, plans: Sequence[Plan], length: int, *, repeats: int, warmup: int
) -> tuple[list[Measurement], list[float]]:
    """All arms at `length` cached tokens, and how far the first logits of each are from stock's (0 is perfect).

    The caches grow by a token with every repeat.
    """
    model = decoder.model
    states = {str(plan): admit(decoder, None, plan, [TOKEN] * length, warmup + repeats + 1, CHUNK)[0] for plan in plans}
    stock = DynamicCache(config=model.config)
    fill(decoder, list(states.values()), stock, length)
    arms = {STOCK: partial(stock_step(model, stock), TOKEN)} | {
        name: _winnow_step(decoder, state) for name, state in states.items()
    }
    logits = {name: step() for name, step in arms.items()}
    before, steps = {name: state.stats.units_read for name, state in states.items()}, warmup + repeats
    seconds = alternate(arms, repeats=repeats, warmup=warmup, device=decoder.device)
    # The counted steps read length + 2 to length + 1 + steps: the first step was the one above.
    units = {STOCK: shape.layers * shape.kv_heads * (2 * length + 3 + steps) // 2}
    units |= {name: (state.stats.units_read - before[name]) // steps for name, state in states.items()}
    weights = shape.layers * shape.layer_weights + shape.head_weights
    measured = [
        Measurement(
            arm=arm,
            length=length,
            seconds=seconds[arm],
            read_bytes=weights * decoder.dtype.itemsize + units[arm] * decoder.shape.unit_bytes,
            flops=2 * weights + 4 * shape.head_dim * units[arm] * shape.q_heads // shape.kv_heads,
        )
        for arm in arms
    ]
    return measured, [(logits[arm] - logits[STOCK]).abs().max().item() for arm in arms]


@torch.inference_mode()
def fill(decoder: Decoder, states: Sequence[State], stock: DynamicCache | None, length: int) -> None:
    """Give all caches the same `length` random units, every layer alike; a plan evicts as in a prefill.

    Caches of fixed size are compressed once, and keep the newest, since nothing has scored them.

    Where the plan leaves only the tokens that it names at the start in a layer, only theirs are given to it.
    """
    shape, device = decoder.shape, decoder.device
    size = (2, shape.kv_heads, length, shape.head_dim)
    generator = torch.Generator(device).manual_seed(0)
    keys, values = torch.empty(size, dtype=decoder.dtype, device=device).normal_(generator=generator)
    nothing = torch.zeros(length, device=device)
    for layer in range(shape.layers if stock is not None else 0):
        assert stock is not None
        stock.update(keys[None], values[None], layer)
    for state in states:
        held = state.plan.compute.prompt_units(decoder.shape, length, state.deep)
        known = {len(each): each for each in (state.deep.positions, state.deep.anchors)}
        for layer, cache in enumerate(state.caches):
            if state.holder(layer) != layer:
                continue
            places = torch.tensor(known.get(held[layer], range(length)), dtype=torch.int64, device=device)
            for positions in places[cache.length :].split(CHUNK):  # the first token's units may be there
                cache.append(keys[:, positions], values[:, positions], positions)
                state.plan.keep.evict(cache, shape.windows[layer])
            if state.plan.keep.boundary(0, length) is not None:
                state.plan.keep.compress(cache, Moment(length, length, shape.windows[layer], HEADROOM, nothing, True))
        state.position = length


def _winnow_step(decoder: Decoder, state: State) -> Callable[[], torch.Tensor]:
    return lambda: decode(decoder, [(state, TOKEN)])[0]


def stock_step(model: PreTrainedModel, cache: DynamicCache) -> Callable[[int], torch.Tensor]:
    """A decode step of the stock model: token id -> logits [vocab] float32."""

    @torch.inference_mode()
    def step(token: int) -> torch.Tensor:
        ids = torch.tensor([[token]], device=model.device)
        return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].float()

    return step
