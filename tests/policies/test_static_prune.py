"""Static pruning against the stock layers, and its closed formulas."""

import math

import pytest
import torch

from covering import covered
from driving import decode, prefill
from models import WINDOW, small_model
from winnow import LLM, Plan, SamplingParams
from winnow.errors import PlanError
from winnow.policies.compute.base import Entrance
from winnow.policies.compute.static_prune import StaticPrune
from winnow.runtime.sequence import new_sequence

LAYERS, PROMPT = 4, 31


@pytest.fixture
def llm():
    return LLM(small_model("llama"), prefill_chunk=7)


def start(llm, policy, ids):
    state = new_sequence(llm.decoder, Plan(compute=policy), PROMPT, len(ids), llm.prefill_chunk)
    return state, prefill(llm.decoder, state, ids[:PROMPT], llm.prefill_chunk)


@torch.inference_mode()
def chosen(model, prompt, keep, layers, near, voters, votes, sink):
    """The positions that go on, from the stock model's own attention maps."""
    maps = model(torch.tensor([prompt]), output_attentions=True, use_cache=False).attentions[:layers]
    voting = torch.stack(maps)[:, 0, :, -voters:]  # [layers, heads, voters, units]
    votes = voting.mean((0, 1, 2)) if votes == "mean" else voting.amax(2).mean(1).amax(0)
    votes = votes[:-1]
    ahead = min(near[1], near[0] // 2)
    behind = near[0] - 1 - ahead
    score = [max(votes[max(0, i - behind) : i + ahead + 1]) for i in range(len(votes))]
    score[:sink] = [math.inf] * len(score[:sink])
    order = sorted(range(len(prompt) - 1), key=lambda i: (-float(score[i]), i))
    return sorted([*order[: max(1, math.ceil(keep * len(order) - 1e-9))], len(prompt) - 1])


@torch.inference_mode()
def reference(model, ids, prompt, keep, layers, near, voters, votes, sink):
    """Stock layers over the whole text: rows of the prompt see all below `layers`, others what was kept."""
    body, going = model.model, chosen(model, ids[:prompt], keep, layers, near, voters, votes, sink)
    stays = torch.tensor([i >= prompt or i in going for i in range(len(ids))])
    hidden, positions = body.embed_tokens(torch.tensor([ids])), torch.arange(len(ids))
    for index, block in enumerate(body.layers):
        if index == layers:
            hidden, positions = hidden[:, stays], positions[stays]
        visible = positions[None] <= positions[:, None]
        visible &= stays[positions][None] | (positions[:, None] < prompt)
        mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None, None]
        hidden = block(hidden, attention_mask=mask, position_embeddings=body.rotary_emb(hidden, positions[None]))
    return model.lm_head(body.norm(hidden))[0, -(len(ids) - prompt + 1) :], going


@covered(
    layers=[1, 2, 3], keep=[0.05, 0.4, 0.9], chunk=[1, 7, 64], near=[(1, 7), (5, 7), (5, 0), (9, 1)], sink=[0, 4, 40],
    voting=[(1, "mean"), (1, "max"), (4, "mean"), (9, "max"), (31, "max"), (64, "mean")],
)  # fmt: skip
def test_equals_the_stock_layers_on_the_kept_tokens(llm, text, layers, keep, chunk, near, voting, sink):
    """The choice, the logits of every step, and what every layer holds after it."""
    llm.prefill_chunk = chunk
    voters, votes = voting if voting[0] > 1 or layers > 1 else (1, "max")
    expected, going = reference(llm.model, text, PROMPT, keep, layers, near, voters, votes, sink)
    policy = StaticPrune(keep, layers, *near, voters, votes, sink)
    state, logits = start(llm, policy, text)
    assert [cache.live_positions().tolist() for cache in state.caches] == [going] * LAYERS
    rows = [logits] + [decode(llm.decoder, [(state, token)])[0] for token in text[PROMPT:]]
    torch.testing.assert_close(torch.stack(rows), expected, rtol=0, atol=1e-5)
    held = [*going, *range(PROMPT, len(text))]
    assert [cache.live_positions().tolist() for cache in state.caches] == [held] * LAYERS
    assert sum(aside.nbytes for aside in state.aside.values()) == 0


@covered((("keep", "layers"), [(0.3, 1), (0.5, 2), (0.77, 3), (1.0, 4)]), prompt=[1, 2, 3, 20, 31])
def test_rows_units_and_bytes_in_closed_form(llm, text, prompt, keep, layers):
    new, kv_heads = 6, 2
    plan = f"static_prune(keep={keep}, layers={layers})"
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    [out] = llm.generate([text[:prompt]], params, plan=plan)
    left = min(prompt, max(1, math.ceil(keep * (prompt - 1) - 1e-9)) + 1)
    stats, shape = out.stats, llm.decoder.shape
    rows = [prompt] * layers + [left] * (LAYERS - layers)
    assert StaticPrune(keep=keep, layers=layers).layer_tokens(shape, prompt) == (rows, rows)
    assert stats.rows_computed == sum(rows) + LAYERS * (new - 1)
    assert stats.rows_full == LAYERS * (prompt + new - 1)
    assert (stats.prompt_tokens, stats.revived_rows) == (prompt, 0)
    assert stats.units_read == kv_heads * LAYERS * sum(left + step for step in range(1, new))
    assert stats.cache_bytes == kv_heads * shape.unit_bytes * LAYERS * (left + new - 1)


def test_ties_go_to_the_earlier_position(llm):
    visible, policy = torch.arange(9), StaticPrune(keep=0.5, layers=2)
    entrance = Entrance(
        shape=llm.decoder.shape, prompt=9, known=9, decode=False, visible=visible,
        aside=visible < 0, deep=visible[:0], signals=[torch.full((9,), 0.1), torch.full((9,), 0.2)], revived=0,
    )  # fmt: skip
    [gate] = policy.gates(llm.decoder.shape)
    assert policy.choose(gate, entrance).tolist() == [0, 1, 2, 3, 8]
    assert (gate.layer, gate.rank_by, gate.stopped) == (2, (0, 1), "evicted")


def test_a_ragged_batch_equals_each_alone(llm, text):
    plans = [StaticPrune(keep=0.3, layers=2), StaticPrune(keep=0.6, layers=1), StaticPrune(keep=1.0)]
    texts = [text, text[::-1], text[5:] + text[:5]]
    states = [start(llm, policy, ids)[0] for policy, ids in zip(plans, texts, strict=True)]
    steps = [
        decode(llm.decoder, [(s, ids[i]) for s, ids in zip(states, texts, strict=True)]) for i in range(PROMPT, 48)
    ]
    for index, (policy, ids) in enumerate(zip(plans, texts, strict=True)):
        expected = llm.logits(ids, decode_from=PROMPT, plan=Plan(compute=policy))[1:]
        torch.testing.assert_close(torch.stack(steps)[:, index], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt_oss", "smollm3"])
def test_windows_caps_and_sinks(name, text):
    """Every layer holds the same tokens, but for those that have left its window."""
    llm = LLM(small_model(name), prefill_chunk=9)
    state, _ = start(llm, StaticPrune(keep=0.4, layers=2), text)
    [full] = {tuple(c.live_positions().tolist()) for c, w in zip(state.caches, llm.decoder.shape.windows, strict=True)
              if w is None} or {None}  # fmt: skip
    for cache, window in zip(state.caches, llm.decoder.shape.windows, strict=True):
        held = cache.live_positions().tolist()
        if window is not None and full is not None:
            assert held == [p for p in full if p >= PROMPT - (WINDOW - 1)]
        assert held[-1] == PROMPT - 1
    for token in text[PROMPT:]:
        assert decode(llm.decoder, [(state, token)]).isfinite().all()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("static_prune(keep=0)", "above 0"),
        ("static_prune(keep=1.5)", "at most 1"),
        ("static_prune(layers=0)", "layers=0 must be at least 1"),
        ("static_prune(layers=2, kernel=4)", "kernel=4 must be odd.*use 5"),
        ("static_prune(layers=4)", "leaves none of the model's 4 layers to prune; use layers=1 to 3"),
        ("static_prune(layers=2) + streaming", "ranks the tokens of a prompt at its end"),
    ],
)
def test_bad_parameters(llm, text, plan, says):
    with pytest.raises(PlanError, match=says):
        llm.logits(text, decode_from=PROMPT, plan=plan)


def test_the_default_fits_the_bundled_model():
    out = LLM("needle").generate(
        "The pass key is 4711. Remember it.", SamplingParams(max_tokens=2), plan="static_prune"
    )
    stats = out[0].stats
    assert stats.rows_computed < stats.rows_full
