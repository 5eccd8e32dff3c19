"""The queries that Expected Attention remembers; the whole is compared with a restatement in `test_scores`."""

import pytest
import torch

from driving import decode, prefill
from models import small_model
from winnow import LLM, Plan
from winnow.engine.services import admit
from winnow.errors import PlanError
from winnow.policies.keep.base import Queries
from winnow.policies.keep.expected_attention import ExpectedAttention
from winnow.runtime import rotary
from winnow.runtime.queries import QueriesSeen

PROMPT = 31


@pytest.mark.parametrize("name", ["llama", "phi3", "cohere2", "smollm3", "gpt_oss", "llama-yarn"])
def test_the_average_rotation_is_the_mean_of_all(name, monkeypatch):
    """Of queries, covariances and every family's own rotation."""
    decoder = LLM(small_model(name)).decoder
    rope = rotary.LayerRope(decoder.rotary, decoder.rotary.choose(64), decoder.rope_kinds[0])
    monkeypatch.setattr(rotary, "AVERAGED", 7)  # so that there are several blocks
    x, places = torch.randn(3, 2, decoder.shape.head_dim), torch.arange(40, 57)
    each = [rope.turn(x.flatten(0, 1)[None], torch.full((1, 6), place)) for place in places.tolist()]
    expected = torch.stack(each).mean(0).view_as(x)
    got = rope.averaged(range(40, 57), x.device)(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cuts", [(1,) * 20, (20,), (3, 9, 8), (2, 18)])
def test_queries_are_counted_alike_however_they_come(cuts):
    """Far from 0 compared with how they vary, as of models with biases."""
    llm = LLM(small_model())
    shape, rows = llm.decoder.shape, 100 + torch.randn(4, 20, llm.decoder.shape.head_dim)
    seen, place = QueriesSeen(Queries(2, 8), shape), 0
    for piece in rows.split(cuts, 1):
        seen.note(3, piece, torch.arange(place, place + piece.shape[1]))
        place += piece.shape[1]
    mean, covariance = seen.ahead(3, None, 0, rows.device)
    expected = rows[:, 2:].double()
    torch.testing.assert_close(mean.double(), expected.mean(1), rtol=1e-6, atol=0)
    whole = torch.stack([torch.cov(head.T, correction=0) for head in expected])
    torch.testing.assert_close(covariance.double(), whole, rtol=0, atol=1e-4)
    assert not any(each.any() for each in seen.ahead(1, None, 0, rows.device))  # a layer to which no row came


def test_a_fork_counts_its_own_queries(text):
    llm = LLM(small_model(), prefill_chunk=7)
    plan = Plan(keep=ExpectedAttention(**ExpectedAttention.trial, decode_chunk=4))
    state, seen = admit(llm.decoder, None, plan, text[:PROMPT], 12, 7)
    prefill(llm.decoder, state, seen, 7)
    twin = state.fork()
    for token in text[:5]:
        decode(llm.decoder, [(twin, token)])
    assert state.queries.layers[0][0] == PROMPT - 2
    assert twin.queries.layers[0][0] == PROMPT + 5 - 2
    shape = llm.decoder.shape
    width = shape.head_dim
    assert state.queries.nbytes == 4 * shape.layers * shape.q_heads * width * (1 + width)
    assert not (twin.queries.layers[0][1] == state.queries.layers[0][1]).all()


def test_no_more_positions_are_averaged_than_there_are():
    """What that takes is counted nowhere, and a server's clients may ask for it."""
    llm = LLM(small_model("llama"))
    with pytest.raises(PlanError, match="ahead=1000000 is more than the model has positions; use up to 512"):
        llm.check([[5] * PROMPT], plan="expected_attention(ahead=1000000)")


def test_sinks_leave_room_for_what_is_scored():
    with pytest.raises(PlanError, match="sink=4 must be below budget=4"):
        ExpectedAttention(budget=4)
