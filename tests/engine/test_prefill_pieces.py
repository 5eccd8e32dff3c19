"""What rows of a prompt read is chosen for pieces that follow from the plan: no step, room or company changes them."""

import pytest
import torch

from models import small_model
from winnow import LLM, Engine, SamplingParams
from winnow.engine.job import Job, step
from winnow.engine.services import admit
from winnow.plan import Plan
from winnow.runtime.heads import HeadsConfig, RetainingHeads

PLANS = (
    "minference(vertical=3, slash=4, sink=1, near=1, block=2, chunk=8)",
    "flexprefill(gamma=0.4, min_budget=4, block=2, chunk=12)",
    "xattention(threshold=0.5, stride=2, block=4)",
    "minference(vertical=3, slash=4, sink=1, near=1, block=2, chunk=8) + locret(budget=9, chunk=6, local=4)",
    "lazyllm(layers=[1, 2], keep=0.5) + xattention(threshold=0.5, stride=2, block=4)",
)


class Kept(Job):
    """Keeps the logits after the prompt, and counts the rows of its steps."""

    def take(self, logits):
        self.logits = logits


def small(deterministic=False, name="llama"):
    llm = LLM(small_model(name), prefill_chunk=10, deterministic=deterministic)
    config = HeadsConfig.of(llm.model, llm.decoder.shape, width=8)
    llm.decoder.default_heads = RetainingHeads.random(config, seed=1)
    return llm


def after(llm, plan, ids, rows, mates=()):
    """The logits after a prompt, in steps that have room for so many rows, and what its prefill has counted."""
    made = [admit(llm.decoder, None, each, list(prompt), 1, 10) for each, prompt in [(plan, ids), *mates]]
    jobs = [Kept(state, prompt) for state, prompt in made]
    while any(job.pending for job in jobs):
        step(llm.decoder, jobs, rows)
    return jobs[0].logits, jobs[0].state.stats


@pytest.mark.parametrize("text_plan", PLANS)
def test_room_and_company_change_nothing(text_plan, text):
    llm, plan = small(), Plan.parse(text_plan)
    expected, counted = after(llm, plan, text, 64)
    assert 0 < counted.pairs_read < counted.pairs_full
    mates = [(Plan(), text[::-1]), (plan, text[3:40])]
    for rows, beside in ((1, ()), (5, ()), (13, ()), (7, mates), (64, mates)):
        got, mine = after(llm, plan, text, rows, beside)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
        assert (mine.pairs_read, mine.pairs_full) == (counted.pairs_read, counted.pairs_full)


@pytest.mark.parametrize("text_plan", PLANS)
def test_to_the_bit_where_that_is_asked_for(text_plan, text):
    llm, plan = small(deterministic=True), Plan.parse(text_plan)
    expected, _ = after(llm, plan, text, 64)
    got, _ = after(llm, plan, text, 3, [(Plan(), text[::-1])])
    assert (got == expected).all()


def test_an_engine_steps_no_further_than_it_has_room(text):
    """A piece that is longer than a step has room for goes through the layers over several steps, others decoding."""
    llm = small()
    engine, params = Engine(llm, max_step_tokens=6), SamplingParams(max_tokens=6, ignore_eos=True)
    first = engine.add(text[:5], params)
    engine.step()
    second = engine.add(text, params, plan="minference(vertical=3, slash=4, sink=1, near=1, block=2, chunk=24)")
    between, ended = 0, {}
    while not engine.idle:
        for output in engine.step():
            between += output.request_id == first and second not in ended
            if output.completion is not None:
                ended[output.request_id] = output.completion
    assert between >= 4
    [alone] = llm.generate([text], params, plan="minference(vertical=3, slash=4, sink=1, near=1, block=2, chunk=24)")
    assert ended[second].token_ids == alone.token_ids
    assert ended[second].stats.pairs_read == alone.stats.pairs_read


@pytest.mark.parametrize("text_plan", [*PLANS, "xattention(threshold=0.5, stride=2, block=4) + mapped(resident_mib=1)"])
def test_kernels_agree_over_whatever_is_held(text_plan, text, monkeypatch):
    """On heads as wide as the compiled kernel takes them: units where they lie, in files, rotated by their places."""
    llm = small(name="llama-wide")
    expected = llm.logits(text, decode_from=31, plan=text_plan)
    monkeypatch.setattr("winnow.kernels.sparse.kernel_for", lambda *_, **__: "blocked")
    torch.testing.assert_close(llm.logits(text, decode_from=31, plan=text_plan), expected, rtol=0, atol=1e-5)
