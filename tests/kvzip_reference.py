"""KVzip restated on stock transformers: the scores from what its attention says, and the choice over lists."""

import copy

import torch
from transformers import DynamicCache


@torch.inference_mode()
def scores_of(model, ids, repeats, sink, normalised=False):
    """[layers][heads][end] floats from the attention that transformers' eager modules return.

    normalised: each times the norm of the value behind the output projection, over that of what enters the row's
    attention.
    repeats: [(row tokens, first, stop)], whose chunks are all tokens up to the end.
    """
    end = repeats[-1][2]
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    past = DynamicCache(config=eager.config)
    eager(torch.tensor([ids[:end]]), cache=past)
    layers, heads = eager.config.num_hidden_layers, eager.config.num_key_value_heads
    found = [[[0.0] * end for _ in range(heads)] for _ in range(layers)]
    entered = {}
    for layer, module in enumerate(eager.model.layers):
        module.self_attn.register_forward_pre_hook(
            lambda _, given, named, at=layer: entered.__setitem__(at, (named.get("hidden_states"), *given)),
            with_kwargs=True,
        )
    for tokens, first, stop in repeats:
        out = eager(torch.tensor([tokens]), cache=copy.deepcopy(past), output_attentions=True)
        for layer, weights in enumerate(out.attentions):
            told = [*range(min(sink, first)), *range(first, stop), *range(end, weights.shape[-1])]
            some = weights[0, :, :, told] / weights[0, :, :, told].sum(-1, keepdim=True)
            if normalised:
                hidden = next(each for each in entered[layer] if each is not None)[0]
                projection = eager.model.layers[layer].self_attn.o_proj.weight
                for q_head, part in enumerate(projection.split(projection.shape[1] // weights.shape[1], 1)):
                    values = past.layers[layer].values[0, q_head * heads // weights.shape[1]]
                    made = [(part @ values[unit]).norm() if unit < end else 0.0 for unit in told]
                    some[q_head] *= torch.tensor(made) / hidden.norm(dim=-1, keepdim=True)
            best = some.unflatten(0, (heads, -1)).amax((1, 2))  # [heads, told]
            for head in range(heads):
                for unit in range(first, stop):
                    found[layer][head][unit] = best[head][told.index(unit)].item()
    return found


def chosen(scores, sink, budget):
    """Positions that stay, by layer and head."""
    order = [
        (unit < sink, score, unit, layer, head)
        for layer, heads in enumerate(scores)
        for head, units in enumerate(heads)
        for unit, score in enumerate(units)
    ]
    stay = [[[] for _ in heads] for heads in scores]
    for _, _, unit, layer, head in sorted(order, reverse=True)[: budget * len(scores) * len(scores[0])]:
        stay[layer][head].append(unit)
    return [[sorted(head) for head in layer] for layer in stay]
