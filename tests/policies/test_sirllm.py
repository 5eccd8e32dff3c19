"""SirLLM against an independent token-by-token implementation, with both definitions of surprisal."""

import math
from itertools import pairwise

import pytest
import torch

from cache_of_scores import cache_of, kept
from covering import covered
from evict_reference import assert_equals_reference
from models import small_model
from winnow import LLM, SamplingParams
from winnow.errors import PlanError
from winnow.policies.keep.sirllm import SirLLM

PROMPT = 31


def surprisal(notes, definition):
    """Per token so far; the chunks of "repeat" are those between boundaries."""
    chances = [row.log_softmax(-1) for row in notes.logits]
    if definition == "next":
        return [math.inf] + [-float(chances[i - 1][token]) for i, token in enumerate(notes.ids) if i]
    repeated = [-float(chances[i][token]) for i, token in enumerate(notes.ids)]
    edges = [*notes.boundaries, len(notes.ids)]
    found = []
    for start, stop in pairwise(edges):
        chunk = repeated[start:stop]
        found += [max(chunk), *chunk[:-1]]
    return found


def rule(policy, recent):
    def stays(notes, live):
        values = surprisal(notes, policy.surprisal_of)
        score = {p: values[p] * policy.decay ** sum(p < time for time in notes.evictions) for p in live}
        order = sorted(live, key=lambda p: -score[p])  # stable: of equals the older
        inside = [p for p in order if notes.window is None or live[-1] + 1 - p < notes.window]
        chosen = set(inside[: policy.budget - policy.sink - recent]) | set(live[: policy.sink]) & set(inside)
        for p in reversed(live):
            if len(chosen) == policy.budget:
                break
            chosen.add(p)
        return chosen

    return stays


CASES = [
    ("llama", {"chunk": 6}),
    ("llama", {"chunk": 6, "surprisal_of": "repeat"}),
    ("llama", {"chunk": 5, "decay": 0.7, "sink": 0, "recent": 1, "decode_chunk": 3}),
    ("llama", {"chunk": 5, "decay": 0.95, "surprisal_of": "repeat", "decode_chunk": 1, "positions": "original"}),
    ("llama", {"chunk": None, "local": 0, "recent": None, "positions": "original"}),
    ("llama", {"chunk": 1, "surprisal_of": "repeat", "recent": 0}),
    ("mistral", {"budget": 6, "chunk": 5, "sink": 1}),  # a window of 8 in every layer
]


@covered((("name", "parameters"), CASES), prefill_chunk=[1, 7, 64])
def test_equals_the_reference(text, name, parameters, prefill_chunk):
    policy = SirLLM(**{"budget": 9, "local": 4, "sink": 2, "recent": 2, **parameters})
    recent = policy.budget // 7 if policy.recent is None else policy.recent
    llm = LLM(small_model(name), prefill_chunk=prefill_chunk)
    sets = assert_equals_reference(llm, text, policy, rule(policy, recent), PROMPT, policy.local)
    [same] = {str(head) for layer in sets[PROMPT - 1] for head in layer}  # one list of tokens everywhere
    recency = [*range(policy.sink), *range(PROMPT - policy.local - policy.budget + policy.sink, PROMPT)]
    assert same != str(recency)  # surprisal has had a say


def test_the_two_definitions_differ(text):
    llm = LLM(small_model())
    plans = [f"sirllm(budget=9, chunk=6, sink=2, recent=2, local=4, surprisal_of='{of}')" for of in ("next", "repeat")]
    first, second = (llm.logits(text, decode_from=PROMPT, plan=plan) for plan in plans)
    assert (first - second).abs().max() > 1e-3


def test_what_stays_by_hand():
    surprising = torch.tensor([9.0, 0, 1, 8, 0, 7, 0, 0, 6, 0])
    nothing = torch.zeros(2, 10)
    same = {"budget": 6, "sink": 2, "recent": 2, "local": 0}
    # Two by surprisal, 0 and 3, of which the first is a sink as well; three of the newest fill the budget.
    assert kept(SirLLM(**same), cache_of(nothing), surprisal=surprising) == [[0, 1, 3, 7, 8, 9]] * 2
    # One place on, and the highest at the front: 0 and 4 have 9.
    repeat = SirLLM(surprisal_of="repeat", **same)
    cache = cache_of(nothing)
    assert kept(repeat, cache, surprisal=torch.tensor([0.0, 1, 0, 9, 8, 0, 7, 0, 6, 0])) == [[0, 1, 4, 7, 8, 9]] * 2
    assert cache.live_positions().dim() == 1
    assert cache.live_scores()[0].tolist() == [9, 0, 9, 7, 0, 6]
    # Only one by surprisal: of the two highest, the older.
    one = SirLLM(surprisal_of="repeat", budget=6, sink=0, recent=5, local=0)
    assert (
        kept(one, cache_of(nothing), surprisal=torch.tensor([0.0, 9, 8, 0, 7, 0, 6, 0, 0, 0]))
        == [[0, 5, 6, 7, 8, 9]] * 2
    )


def test_what_has_left_a_window_is_not_kept():
    """No row to come sees it, sinks and surprising tokens included; what is missing is filled with the newest."""
    surprising = torch.tensor([9.0, 0, 1, 8, 0, 7, 0, 0, 6, 0])
    policy = SirLLM(budget=6, sink=2, recent=2, local=0)
    got = kept(policy, cache_of(torch.zeros(2, 10)), window=7, surprisal=surprising)  # positions 4 to 9 are in it
    assert got == [[4, 5, 6, 7, 8, 9]] * 2
    got = kept(policy, cache_of(torch.zeros(2, 10)), window=8, surprisal=surprising)
    assert got == [[3, 5, 6, 7, 8, 9]] * 2


def test_surprisal_decays_where_tokens_were_evicted():
    surprising = torch.tensor([9.0, 0, 1, 8, 0, 7, 0, 0, 6, 0])
    policy = SirLLM(budget=6, sink=2, recent=2, local=0, decay=0.5)
    cache = cache_of(torch.zeros(2, 10))
    kept(policy, cache, surprisal=surprising)
    assert cache.live_scores()[1].tolist() == [4.5, 0, 4, 0, 3, 0]
    kept(policy, cache, surprisal=surprising[:0])
    assert cache.live_scores()[1].tolist() == [4.5, 0, 4, 0, 3, 0]  # nothing was evicted


def test_a_seventh_of_the_budget_is_recent_unless_told():
    surprising = torch.arange(40.0).flip(0)
    assert kept(SirLLM(budget=14, sink=0, local=0), cache_of(torch.zeros(1, 40)), surprisal=surprising) == [
        [*range(12), 38, 39]
    ]


def test_bytes_in_closed_form_and_memory_given_back(text):
    model = small_model()
    model.config.max_position_embeddings = 4096
    llm = LLM(model)
    prompt = text * 40
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    [out] = llm.generate([prompt], params, plan="sirllm(budget=40, chunk=None, local=8)")
    shape = llm.decoder.shape
    unit = shape.layers * shape.kv_heads * shape.unit_bytes
    assert out.stats.peak_cache_bytes == (len(prompt) - 8) * unit
    assert out.stats.cache_bytes == (40 + 8 + 2) * unit
    assert out.stats.allocated_bytes < 0.2 * len(prompt) * unit
    [bounded] = llm.generate([prompt], params, plan="sirllm(budget=40, chunk=24, local=8)")
    assert bounded.stats.peak_cache_bytes == bounded.stats.allocated_bytes == (40 + 24) * unit


def test_a_prompt_may_be_longer_than_the_models_positions(text):
    [out] = LLM(small_model()).generate(
        [text * 20], SamplingParams(max_tokens=3, ignore_eos=True), plan="sirllm(64, 128)"
    )
    assert len(out.token_ids) == 3


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"budget": 4}, "sink=4 and recent=0 must leave a part of budget=4"),
        ({"budget": 10, "recent": 6}, "sink=4 and recent=6 must leave a part of budget=10"),
        ({"sink": -1}, "sink=-1 must be at least 0"),
        ({"recent": -1}, "recent=-1 must be at least 0"),
        ({"decay": 0.0}, "decay=0.0 must be above 0 and at most 1"),
        ({"decay": 1.5}, "decay=1.5 must be above 0"),
        ({"surprisal_of": "shifted"}, "surprisal_of='shifted' must be one of 'next', 'repeat'"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(PlanError, match=message):
        SirLLM(**parameters)
