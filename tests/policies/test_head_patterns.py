"""Patterns of heads: searched against sums over the stock attention, written, read, used and refused elsewhere."""

import json
import random

import pytest
import torch

from models import small_model
from policies.test_minference import rule
from prefill_reference import stock_skipping
from winnow import LLM, Plan
from winnow.diagnosis.patterns import candidates, search_patterns
from winnow.errors import InputError, ModelError, PlanError
from winnow.policies.prefill.minference import MInference, Pattern
from winnow.runtime.head_patterns import FILE

TRIED = [Pattern("a_shape", 5, 40), Pattern("vertical_slash", 40, 3), Pattern("block_sparse", 1)]


@pytest.fixture(scope="module")
def ids():
    source = random.Random(5)
    return [source.randrange(3, 97) for _ in range(150)]


def as_policy(pattern):
    sizes = {"blocks": pattern.first} if pattern.kind == "block_sparse" else {
        "vertical": pattern.first, "slash": pattern.second
    }  # fmt: skip
    return MInference(pattern=pattern.kind, chunk=192, **sizes)


def test_the_best_of_each_head_holds_most_of_its_attention(ids):
    llm, told = LLM(small_model()), []
    found = search_patterns(llm, ids, TRIED, told.append)
    held = {}

    def look_at(look):
        attention = look.attention(look.rows)
        causal = torch.ones(look.rows, look.rows, dtype=torch.bool).tril()
        each = [(attention * (rule(as_policy(one))(look) & causal)).sum(-1)[:, 75:].mean(-1) for one in TRIED]
        held[look.layer] = torch.stack(each).max(0)
        return causal.expand(len(look.q), -1, -1)

    stock_skipping("llama", ids, llm.decoder.shape.windows, look_at, [(0, len(ids))])
    for layer, best in held.items():
        assert found.layers[layer] == [TRIED[at] for at in best.indices.tolist()]
        assert found.shares[layer] == pytest.approx(best.values.tolist(), abs=2e-4)
    assert sum(told) == len(held) == llm.decoder.shape.layers
    assert len({each for heads in found.layers for each in heads}) > 1


def test_what_was_written_is_used_head_by_head(ids, tmp_path):
    llm = LLM(small_model())
    found = search_patterns(llm, ids, TRIED)
    found.save(tmp_path)
    policy, rules = MInference(heads=str(tmp_path), chunk=192), {each: rule(as_policy(each)) for each in TRIED}

    def by_head(look):
        seen = {each: rules[each](look) for each in TRIED}
        return torch.stack([seen[each][head] for head, each in enumerate(found.layers[look.layer])])

    expected, _ = stock_skipping("llama", [*ids, 5], llm.decoder.shape.windows, by_head, [(0, len(ids))])
    got = llm.logits([*ids, 5], decode_from=len(ids), plan=Plan(prefill=policy))
    torch.testing.assert_close(got, expected[len(ids) - 1 :], rtol=0, atol=1e-5)


def test_another_model_and_damage_are_refused(ids, tmp_path):
    search_patterns(LLM(small_model()), ids, TRIED).save(tmp_path)
    plan = f"minference(heads={str(tmp_path)!r})"
    with pytest.raises(ModelError, match=r"were searched on .* winnow diagnose patterns"):
        LLM(small_model("qwen3")).generate([ids], plan=plan)
    told = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    told["layers"][0].pop()
    (tmp_path / FILE).write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(ModelError, match=r"is damaged .*not a pattern for each of 4 layers and 4 query heads"):
        LLM(small_model()).generate([ids], plan=plan)
    told["layers"][0][0] = ["diagonal", 3, 4]
    (tmp_path / FILE).write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(ModelError, match=r"is damaged .*is no pattern"):
        LLM(small_model()).generate([ids], plan=plan)
    with pytest.raises(ModelError, match="holds no patterns of heads"):
        LLM(small_model()).generate([ids], plan="minference(heads='nowhere')")
    with pytest.raises(PlanError, match="slash=3 changes nothing here"):
        Plan.parse("minference(heads='somewhere', slash=3)")


def test_a_text_that_tells_nothing_is_refused():
    with pytest.raises(InputError, match="at least 128"):
        search_patterns(LLM(small_model()), [5] * 100)
    assert [each.first for each in candidates(6400)] == [100, 30, 100, 500, 3500, 12]
