"""FastKV against the stock layers, its closed formulas, and the budget that votes beside it."""

import math

import pytest
import torch

from covering import covered
from driving import advance, decode, prefill
from models import small_model
from winnow import LLM, Plan, SamplingParams
from winnow.errors import PlanError
from winnow.policies.compute.base import Entrance
from winnow.policies.compute.fastkv import FastKV
from winnow.policies.keep.snapkv import SnapKV
from winnow.runtime.sequence import new_sequence

LAYERS, PROMPT = 4, 31


@pytest.fixture
def llm():
    return LLM(small_model("llama"), prefill_chunk=7)


def start(llm, plan, ids):
    state = new_sequence(llm.decoder, plan, PROMPT, len(ids), llm.prefill_chunk)
    return state, prefill(llm.decoder, state, ids[:PROMPT], llm.prefill_chunk)


@torch.inference_mode()
def maps(model, ids):
    """Per layer [heads, rows, units], of the stock model."""
    return [each[0] for each in model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions]


def pooled(votes, kernel, before):
    ahead = min(before, kernel // 2)
    padded = [0.0] * (kernel - 1 - ahead) + votes + [0.0] * ahead
    return [sum(padded[i : i + kernel]) / kernel for i in range(len(votes))]


def largest(votes, kernel, before):
    ahead = min(before, kernel // 2)
    return [max(votes[max(0, i - (kernel - 1 - ahead)) : i + ahead + 1]) for i in range(len(votes))]


def going(model, ids, policy):
    """The positions that go on, in plain Python."""
    layers = range(0 if policy.rank_layers == "all" else policy.layer - 1, policy.layer)
    told = maps(model, ids)
    voting = torch.stack([told[layer][:, -policy.voters :] for layer in layers])  # [layers, heads, voters, units]
    votes = (voting.mean(2) if policy.votes == "mean" else voting.amax(2)).mean(1).amax(0)
    votes = votes.tolist()[: -policy.window]
    count = max(policy.window, math.ceil(policy.keep * len(ids) - 1e-9)) - policy.window
    ranks = (pooled if policy.pooling == "avg" else largest)(votes, policy.kernel, policy.before)
    ranks[: policy.sink] = [math.inf] * len(ranks[: policy.sink])
    best = sorted(range(len(votes)), key=lambda i: (-ranks[i], i))[:count]
    return [*sorted(best), *range(len(ids) - policy.window, len(ids))]


@torch.inference_mode()
def reference(model, ids, prompt, policy, held=None):
    """Stock layers over the whole text: rows from `layer` on are those that go on. held: per layer and query head, the
    prompt's units that later rows see there, if not all that came."""
    body, on = model.model, going(model, ids[:prompt], policy)
    stays = torch.tensor([i >= prompt or i in on for i in range(len(ids))])
    hidden, positions = body.embed_tokens(torch.tensor([ids])), torch.arange(len(ids))
    for index, block in enumerate(body.layers):
        if index == policy.layer:
            hidden, positions = hidden[:, stays], positions[stays]
        visible = (positions[None] <= positions[:, None]).expand(model.config.num_attention_heads, -1, -1)
        if held is not None:
            there = torch.stack([torch.isin(positions, torch.tensor(each)) | (positions >= prompt)
                                 for each in held[index]])  # fmt: skip
            visible = visible & (there[:, None] | (positions[:, None] < prompt))
        mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None]
        hidden = block(hidden, attention_mask=mask, position_embeddings=body.rotary_emb(hidden, positions[None]))
    return model.lm_head(body.norm(hidden))[0, -(len(ids) - prompt + 1) :], on


@covered(
    layer=[1, 2, 3], keep=[0.05, 0.4, 0.9], window=[1, 5], chunk=[1, 7, 64],
    near=[(1, 7), (3, 7), (7, 7), (7, 0), (9, 2)],
    voting=[(1, "max"), (2, "max"), (4, "mean"), (9, "max"), (31, "max"), (64, "mean")], pooling=["avg", "max"],
    sink=[0, 2, 40], rank_layers=["last", "all"],
)  # fmt: skip
def test_equals_the_stock_layers_on_the_tokens_that_go_on(
    llm, text, layer, keep, window, near, chunk, voting, pooling, sink, rank_layers
):
    """The choice, the logits of every step, and what every layer holds after it."""
    voters, votes = voting
    pooling = pooling if near[0] > 1 else "max"
    rank_layers = rank_layers if layer > 1 else "all"
    policy = FastKV(keep, layer, window, *near, pooling, voters, votes, sink, rank_layers)
    llm.prefill_chunk = chunk
    expected, on = reference(llm.model, text, PROMPT, policy)
    state, logits = start(llm, Plan(compute=policy), text)
    rows = [logits] + [decode(llm.decoder, [(state, token)])[0] for token in text[PROMPT:]]
    torch.testing.assert_close(torch.stack(rows), expected, rtol=0, atol=1e-5)
    new = [*range(PROMPT, len(text))]
    held = [[*range(PROMPT), *new]] * layer + [on + new] * (LAYERS - layer)
    assert [cache.live_positions().tolist() for cache in state.caches] == held
    assert sum(aside.nbytes for aside in state.aside.values()) == 0
    assert not state.votes


@covered(chunk=[1, 7, 64], keep=[0.4, 0.9])
def test_a_vote_at_the_end_of_the_prompt_compresses_every_layer(llm, text, chunk, keep):
    """What the authors' code does: layers below hold what the window's rows of all tokens vote for, those above what
    the same rows vote for among the tokens that came."""
    llm.prefill_chunk = chunk
    policy = FastKV(keep=keep, layer=2, window=4, kernel=3, voters=4, votes="mean", pooling="avg", rank_layers="last")
    snapkv = SnapKV(budget=9, chunk=None, local=0, window=4, kernel=3, pooling="avg")
    held = compressed(llm.model, text[:PROMPT], policy, snapkv)
    expected, _ = reference(llm.model, text, PROMPT, policy, held)
    state, logits = start(llm, Plan(compute=policy, keep=snapkv), text)
    rows = [logits] + [decode(llm.decoder, [(state, token)])[0] for token in text[PROMPT:]]
    torch.testing.assert_close(torch.stack(rows), expected, rtol=0, atol=1e-5)
    got = [cache.live_positions()[:, :9].tolist() for cache in state.caches]
    assert got == [each[::2] for each in held]  # two query heads share a KV head


@torch.inference_mode()
def compressed(model, ids, policy, snapkv):
    """Per layer and query head, the positions that stay."""
    body, on = model.model, going(model, ids, policy)
    hidden, positions, held = body.embed_tokens(torch.tensor([ids])), torch.arange(len(ids)), []
    for index, block in enumerate(body.layers):
        if index == policy.layer:
            hidden, positions = hidden[:, on], positions[on]
        attention, x = block.self_attn, block.input_layernorm(hidden)
        cos, sin = body.rotary_emb(hidden, positions[None])
        q, k = (p(x)[0].view(len(positions), -1, attention.head_dim).transpose(0, 1)
                for p in (attention.q_proj, attention.k_proj))  # fmt: skip
        q, k = (turned(each, cos, sin) for each in (q, k.repeat_interleave(2, 0)))
        weights = (
            (q @ k.mT * attention.scaling).masked_fill(positions[None] > positions[:, None], -torch.inf).softmax(-1)
        )
        votes = weights[:, -snapkv.window :, : -snapkv.window].sum(1).view(2, 2, -1).mean(1)
        for head in votes.tolist():
            ranks = pooled(head, snapkv.kernel, snapkv.kernel)
            best = sorted(range(len(head)), key=lambda i: (-ranks[i], -i))[: snapkv.budget - snapkv.window]
            held += [positions[[*sorted(best), *range(len(head), len(positions))]].tolist()] * 2
        mask = torch.zeros(len(positions), len(positions)).masked_fill(positions[None] > positions[:, None], -torch.inf)
        hidden = block(hidden, attention_mask=mask[None, None], position_embeddings=(cos, sin))
    return [held[i : i + 4] for i in range(0, len(held), 4)]


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


@covered(voting=[(6, "max"), (20, "mean")], chunk=[1, 7, 64])
def test_a_fork_in_the_middle_of_the_votes_goes_on_by_itself(llm, text, voting, chunk):
    """What has been voted for so far is held, and counted, and both copies end as the prompt does by itself."""
    voters, votes = voting
    policy = FastKV(keep=0.4, layer=2, window=3, voters=voters, votes=votes)
    expected = start(llm, Plan(compute=policy), text)[1]
    state = new_sequence(llm.decoder, Plan(compute=policy), PROMPT, len(text), chunk)
    for first in range(0, PROMPT - 4, chunk):
        advance(llm.decoder, [(state, text[first : min(first + chunk, PROMPT - 4)])], decode=False)
    assert [each.numel() for each in state.votes.values()] == 2 * [4 * (PROMPT - 4)]
    beside, twin = state.held()[1], state.fork()
    held = {layer: votes.clone() for layer, votes in state.votes.items()}
    for each in (twin, state):
        assert all(torch.equal(state.votes[layer], votes) for layer, votes in held.items())
        logits = prefill(llm.decoder, each, text[PROMPT - 4 : PROMPT], chunk)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    state.votes = held
    assert beside > 0
    assert state.held()[1] == twin.held()[1] + 2 * 4 * 4 * (PROMPT - 4)


@covered((("keep", "layer"), [(0.3, 1), (0.5, 2), (0.77, 3), (1.0, 3)]), prompt=[1, 2, 3, 8, 20, 31])
def test_rows_units_and_bytes_in_closed_form(llm, text, prompt, keep, layer):
    new, kv_heads = 6, 2
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    [out] = llm.generate([text[:prompt]], params, plan=f"fastkv(keep={keep}, layer={layer}, window=3, kernel=3)")
    left = min(prompt, max(3, math.ceil(keep * prompt - 1e-9)))
    stats, shape = out.stats, llm.decoder.shape
    rows = [prompt] * layer + [left] * (LAYERS - layer)
    assert FastKV(keep=keep, layer=layer, window=3, kernel=3).layer_tokens(shape, prompt) == (rows, rows)
    assert stats.rows_computed == sum(rows) + LAYERS * (new - 1)
    assert stats.rows_full == LAYERS * (prompt + new - 1)
    assert (stats.prompt_tokens, stats.revived_rows) == (prompt, 0)
    assert stats.units_read == kv_heads * sum(held + step for held in rows for step in range(1, new))
    assert stats.cache_bytes == kv_heads * shape.unit_bytes * sum(held + new - 1 for held in rows)


def test_ties_go_to_the_earlier_position(llm):
    visible, policy = torch.arange(9), FastKV(keep=0.5, layer=2, window=2, kernel=1)
    entrance = Entrance(
        shape=llm.decoder.shape, prompt=9, known=9, decode=False, visible=visible,
        aside=visible < 0, deep=visible[:0], signals=[torch.full((9,), 0.1)] * 2, revived=0,
    )  # fmt: skip
    [gate] = policy.gates(llm.decoder.shape)
    assert policy.choose(gate, entrance).tolist() == [0, 1, 2, 7, 8]
    assert (gate.layer, gate.rank_by, gate.stopped, gate.newest) == (2, (0, 1), "lost", 2)


@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_a_kernel_takes_no_more_than_the_text(llm, pooling):
    """One that reaches over everything ranks as one that just does."""
    visible, votes = torch.arange(20), torch.rand(20, generator=torch.Generator().manual_seed(3))
    entrance = Entrance(
        shape=llm.decoder.shape, prompt=20, known=20, decode=False, visible=visible,
        aside=visible < 0, deep=visible[:0], signals=[votes], revived=0,
    )  # fmt: skip
    for before in (0, 5, 10**12):
        chosen = []
        for kernel in (2 * 18 + 1, 10**15 + 1):
            policy = FastKV(keep=0.5, layer=2, window=2, kernel=kernel, before=before, pooling=pooling)
            chosen.append(policy.choose(policy.gates(llm.decoder.shape)[0], entrance).tolist())
        assert chosen[0] == chosen[1]


def test_the_layer_is_half_of_the_model_above_one_that_sees_all():
    assert FastKV().gates(LLM(small_model("llama")).decoder.shape)[0].layer == 2
    assert FastKV().gates(LLM(small_model("gemma2")).decoder.shape)[0].layer == 2  # layers 1 and 3 see all
    assert FastKV().gates(LLM(small_model("mistral")).decoder.shape)[0].layer == 2  # none does


@pytest.mark.parametrize(
    "keep",
    [
        "snapkv(budget=80)",
        "snapkv(budget=20, chunk=512, window=8)",
        "snapkv(budget=20, chunk=None, local=0, window=9)",
        "snapkv(budget=20, chunk=None, local=0, window=8, decode_chunk=4)",
        "snapkv(budget=20, chunk=None, local=3, window=8)",
        "h2o(budget=20, chunk=None, local=0, decode_chunk=None)",
        "streaming",
    ],
)
def test_votes_that_would_come_too_early_or_from_rows_that_stop_are_refused(llm, keep):
    with pytest.raises(PlanError, match=r"fastkv ranks the tokens of a prompt at its end.*; use .*one of them"):
        llm.check([[5] * 40], plan=f"fastkv + {keep}")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"layer": 4}, "layer=4 leaves none of the model's 4 layers to stop at; use layer=1 to 3"),
        ({"layer": 0}, "layer=0 must be at least 1"),
        ({"keep": 0.0}, "keep=0.0 must be above 0"),
        ({"voters": 0}, "voters=0 must be at least 1"),
        ({"votes": "mean", "voters": 1}, "votes='mean' changes nothing here: it needs voters above 1"),
        ({"rank_layers": "last", "layer": 1}, "rank_layers='last' changes nothing here: it needs a layer above 1"),
        ({"votes": "most"}, "votes='most' .*mean.*max"),
        ({"kernel": 4}, "kernel=4 must be odd.*use 5"),
        ({"window": 0}, "window=0 must be at least 1"),
    ],
)
def test_bad_parameters_are_refused(llm, parameters, message):
    with pytest.raises(PlanError, match=message):
        FastKV(**parameters).validate(llm.decoder.shape)
