"""Reading by an indexer, against masks over the stock forward and scores unit by unit; what it holds, and refusals."""

import math

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from covering import covered
from models import small_model
from read_reference import PROMPT, run, stock_reading
from trials import small_indexers, small_llm
from winnow import LLM, Plan
from winnow.engine.bound import bound_bytes
from winnow.errors import ModelError, PlanError
from winnow.policies.read.indexer import ROOM, Indexer, IndexerReader

SETTINGS = {"budget": 7, "sink": 1, "recent": 3}


def score(indexer, row, unit):
    """Of one unit for one row, from the hidden states of both."""
    row, unit = (each / (each.square().mean() + 1e-6).sqrt() for each in (row, unit))
    key, weights = indexer.key @ unit, indexer.weight @ row
    queries = (indexer.query @ row).view(len(weights), len(key))
    matches = [max(0.0, float(query @ key)) for query in queries]
    return sum(float(weight) * match for weight, match in zip(weights, matches, strict=True)) / math.sqrt(
        queries.numel()
    )


def best_others(scores, policy, first=0):
    """Positions: the first, the recent, and of the others the best; of those that are equal to the last of them, but
    for what rounding makes of terms as large as the largest score, the newer. scores: by position."""
    units = sorted(scores)
    others, count = units[policy.sink : -policy.recent], policy.budget - policy.sink - policy.recent
    edge = sorted((scores[unit] for unit in others), reverse=True)[count - 1]
    slack = 1e-5 * max(abs(scores[unit]) for unit in others)
    above = [unit for unit in others if scores[unit] > edge + slack]
    level = [unit for unit in others if abs(scores[unit] - edge) <= slack]
    chosen = [*above, *level[len(level) - (count - len(above)) :]]
    return sorted([*units[: policy.sink], *units[-policy.recent :], *chosen])


@pytest.fixture
def entering():
    """What enters the layers of any stock model, by layer: [rows, hidden]."""
    found = {}

    def note(module, arguments):
        if type(module).__name__.endswith("DecoderLayer"):
            found[module.self_attn.layer_idx] = arguments[0][0].detach()

    handle = register_module_forward_pre_hook(note)
    yield found
    handle.remove()


@covered(name=["llama", "gemma2", "gpt_oss", "smollm3", "llama-9-3"], budget=[5, 12, 36, 60])
def test_equals_the_reference(name, budget, text, entering):
    llm, policy = small_llm(name), Indexer(**{**SETTINGS, "budget": budget})
    indexers = small_indexers(llm).layers

    def rule(look):
        read = look.everything()
        if look.window is None and look.units > budget:
            hidden = entering[look.layer]
            scores = {unit: score(indexers[look.layer], hidden[look.row], hidden[unit]) for unit in range(look.row + 1)}
            read[:] = False
            read[:, best_others(scores, policy)] = True
        return read, 0

    shape = llm.decoder.shape
    got, counts, state = run(llm, Plan(read=policy), text)
    expected, read = stock_reading(name, text, shape.windows, rule)
    assert counts == read
    torch.testing.assert_close(got, expected[PROMPT - 1 :], rtol=0, atol=1e-5)
    for n, units in enumerate(counts, PROMPT + 1):
        seen = [min(n, budget) if window is None else min(n, window) for window in shape.windows]
        assert units == shape.kv_heads * sum(seen)
    assert state.stats.fast_steps == sum(n > budget for n in range(PROMPT + 1, len(text) + 1))


@pytest.mark.parametrize(("family", "tokens"), [("llama", 20), ("llama", ROOM + 1), ("gemma2", 20), ("mistral", 20)])
def test_it_holds_a_key_for_every_token(family, tokens, text):
    """8 values of 4 bytes, in whole multiples of ROOM tokens, in every layer without a window; forks have their own."""
    llm, plan = small_llm(family), Plan(read=Indexer(**SETTINGS))
    ids = [text[at % len(text)] for at in range(tokens)]
    with llm.session(plan=plan, max_tokens=6) as session:
        session.feed(ids)
        session.feed(ids[:3])
        held = -(-(tokens + 3) // ROOM) * ROOM * 8 * 4 * llm.decoder.shape.windows.count(None)
        assert session.stats.aux_bytes == held
        assert session.stats.total_bytes <= bound_bytes(plan, llm.decoder.shape, tokens, 6, llm.prefill_chunk)
        twin = session.fork()
        expected = session.feed([5])
        twin.feed([9])
        torch.testing.assert_close(session.fork().feed([7]), session.feed([7]), rtol=0, atol=1e-5)
        assert expected.isfinite().all()


class Checked(IndexerReader):
    """Looks at what is read of what every KV head has."""

    checks = 0

    def entered(self, layer, positions, hidden, *, decode):
        super().entered(layer, positions, hidden, decode=decode)
        self.ranks = None if self._ranked is None else self._ranked.clone()

    def select(self, row, views):
        chosen = super().select(row, views)
        if chosen is not views:
            view, read = views[-1], chosen[-1]
            assert chosen[:-1] == views[:-1]
            places, got = (each.positions.expand(view.kv_heads, -1).tolist() for each in (view, read))
            ranks = (self.ranks / self.ranks.abs().max()).tolist()
            for there, mine in zip(places, got, strict=True):  # but for rounding, by which a token repeated may differ
                assert mine == best_others({unit: round(ranks[unit], 4) for unit in there}, self._policy)
            Checked.checks += 1
        return chosen


@covered(
    others=[
        "streaming(sink=3, recent=14)",
        "locret(budget=12, chunk=6, local=4)",  # every head has its own tokens
        "locret(budget=12, chunk=6, local=4, decode_chunk=3)",  # they change, and keys are held unrotated
        "snapkv(budget=12, chunk=6, window=2, local=4, decode_chunk=None)",
        "sirllm(budget=12, chunk=6, local=4)",
        "quantized(bits=4, group=16, residual=0, chunk=20)",
    ],
    name=["llama", "gemma2"],
)
def test_over_caches_that_others_change(others, name, text, monkeypatch):
    llm, policy = small_llm(name), Indexer(**SETTINGS)
    plan = Plan.parse(f"{others} + indexer(budget=7, sink=1, recent=3)")
    monkeypatch.setattr(Checked, "checks", 0)
    got, counts, _ = run(llm, plan, text, reader=Checked(policy, small_indexers(llm), PROMPT))
    assert not got.isnan().any()
    assert Checked.checks == len(counts) * llm.decoder.shape.windows.count(None)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"budget": 68}, "sink=4 and recent=64 leave nothing of budget=68 to be chosen; use at least budget=69"),
        ({"recent": 0}, "recent=0 must be at least 1"),
        ({"sink": -1}, "sink=-1 must be at least 0"),
        ({"trained": ""}, "trained='' is no directory"),
    ],
)
def test_bad_parameters_are_refused(parameters, says):
    with pytest.raises(PlanError, match=says):
        Indexer(**parameters)


@pytest.mark.parametrize("compute", ["speed(cutoff=2)", "static_prune(layers=2)", "pop(cutoff=2)", "fastkv(layer=2)"])
def test_all_tokens_have_to_enter_all_layers(compute):
    with pytest.raises(PlanError, match="indexer knows a unit of a layer by the row that entered it, and under"):
        Plan.parse(f"{compute} + indexer").validate(small_llm("llama").decoder.shape)


def test_without_indexers_it_is_refused_before_any_work(text):
    with pytest.raises(
        ModelError, match="there are no indexers for LlamaForCausalLM; train some with winnow train ind"
    ):
        LLM(small_model()).check([text], plan="indexer")
