"""A model with one KV head is one with the same head twice, under plans whose heads could hold different units."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from winnow import LLM
from winnow.runtime.view import at_positions, mean_over_heads

HEADS, DIM, PROMPT = 4, 16, 90


def model(kv_heads, of=None):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=HEADS * DIM, intermediate_size=64, num_hidden_layers=3, num_attention_heads=HEADS,
        num_key_value_heads=kv_heads, max_position_embeddings=512, initializer_range=0.3,
    )  # fmt: skip
    made = LlamaForCausalLM(config).eval()
    if of is not None:
        doubled = {
            name: value.repeat(kv_heads, 1) if name.endswith(("k_proj.weight", "v_proj.weight")) else value
            for name, value in of.state_dict().items()
        }
        made.load_state_dict(doubled)
    return made


@pytest.fixture(scope="module")
def both():
    one = model(1)
    return LLM(one), LLM(model(2, one))


RANKED = [  # all heads' votes count, and those of a decode step
    "fastkv(keep=0.2, window=4, kernel=1, voters=16, sink=0, layer=1, rank_layers='all')",
    "fastkv(keep=0.2, window=4, voters=1, layer=1)",
    "lazyllm(layers=[1], keep=0.2, kernel=1, voters=16, sink=0, revive='never')",
    "lazyllm(layers=[1], keep=0.5)",
]
KEPT = [
    "knorm(budget=24, chunk=30, local=0)",
    "keydiff(budget=24, chunk=30, local=0, by_head='adaptive')",
    "lagkv(budget=24, chunk=30, local=0, lag=8)",
]


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("ranked", RANKED)
def test_one_kv_head_is_the_same_head_twice(both, ranked, kept):
    ids = torch.randint(3, 97, (PROMPT + 5,), generator=torch.Generator().manual_seed(1)).tolist()
    plan = f"{ranked} + {kept}"
    one, twice = (llm.logits(ids, decode_from=PROMPT, plan=plan) for llm in both)
    torch.testing.assert_close(one, twice, rtol=1e-4, atol=1e-4)


def test_places_of_one_kv_head_are_those_of_every_query_head():
    weights, positions = torch.rand(HEADS, 5), torch.tensor([7, 1, 4, 0, 3])
    for read in (at_positions, mean_over_heads):
        torch.testing.assert_close(read(weights, positions[None], 9), read(weights, positions, 9))
