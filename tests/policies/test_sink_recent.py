"""Reading the first and the recent units, against masks over the stock forward."""

import pytest

from covering import covered
from read_reference import PROMPT, assert_equals_reference, run, small_llm
from winnow import Plan, SamplingParams
from winnow.errors import PlanError
from winnow.policies.keep.streaming import Streaming
from winnow.policies.read.sink_recent import SinkRecent
from winnow.runtime.observer import Observer


def rule(sink, recent):
    def reads(look):
        seen = look.everything()
        seen[:, sink : max(sink, look.units - recent)] = False
        return seen, 0

    return reads


@covered((("sink", "recent"), [(2, 5), (0, 1), (4, 33)]), name=["llama", "mistral", "gemma2", "smollm3", "gpt_oss"])
def test_equals_the_reference(name, sink, recent, text):
    counts = assert_equals_reference(name, SinkRecent(sink=sink, recent=recent), rule(sink, recent), text)
    shape = small_llm(name).decoder.shape
    for n, read in enumerate(counts, PROMPT + 1):
        seen = [n if window is None else min(n, window) for window in shape.windows]
        assert read == shape.kv_heads * sum(min(units, sink + recent) for units in seen)


def test_nothing_is_copied_and_no_step_is_slow(text):
    class InPlace(Observer):
        def attended(self, attended):
            slab = attended.part.sequence.caches[attended.layer].slab
            for view in attended.views:
                assert view.keys.untyped_storage().data_ptr() == slab.keys.untyped_storage().data_ptr()
                assert view.values.untyped_storage().data_ptr() == slab.values.untyped_storage().data_ptr()

    llm = small_llm()
    run(llm, Plan(read=SinkRecent(sink=2, recent=5)), text, InPlace())
    [out] = llm.generate([text], SamplingParams(max_tokens=5, ignore_eos=True), plan="sink_recent(sink=2, recent=5)")
    assert (out.stats.slow_steps, out.stats.fast_steps, out.stats.aux_bytes) == (0, 4, 0)


@pytest.mark.parametrize("sink", [2, 7])  # fewer than `streaming` keeps in front, and more
def test_of_a_cache_that_forgets_it_reads_both_ends(text, sink):
    """The sinks and the window of `streaming` are one run of units here, whatever the views."""
    read = []

    class Positions(Observer):
        def attended(self, attended):
            read.append(sorted(p for view in attended.views for p in view.positions.tolist()))

    llm = small_llm()
    plan = Plan(keep=Streaming(sink=4, recent=20), read=SinkRecent(sink=sink, recent=6))
    run(llm, plan, text, Positions())
    expected = []
    for row in range(PROMPT, len(text)):
        kept = [*range(4), *range(row - 19, row + 1)]
        expected += [kept[:sink] + kept[-6:]] * llm.decoder.shape.layers
    assert read == expected


@pytest.mark.parametrize(("parameters", "says"), [({"sink": -1}, "sink=-1 must be"), ({"recent": 0}, "recent=0 must")])
def test_bad_parameters_are_refused(parameters, says):
    with pytest.raises(PlanError, match=says):
        SinkRecent(**parameters)


@pytest.mark.parametrize("other", ["lazyllm", "h2o(decode_chunk=8)"])
@pytest.mark.parametrize("name", ["sink_recent", "quest", "sketch", "tidal"])
def test_what_needs_full_attention_in_decode_is_refused(name, other):
    with pytest.raises(PlanError, match=f"{name}.* use "):
        Plan.parse(f"{other} + {name}").validate(small_llm().decoder.shape)
