"""A sequence fed by hand is the sequence that the other calls run."""

import pytest
import torch

from models import small_model, stock_logits
from tokenizers_for_tests import byte_tokenizer
from trials import small_convolutions, small_indexers
from winnow import LLM, SamplingParams
from winnow.engine.session import feed_together
from winnow.errors import CapacityError, InputError, PlanError
from winnow.policies.registry import POLICIES
from winnow.runtime.heads import HeadsConfig, RetainingHeads
from winnow.runtime.observer import Observer

PROMPT = 31
PLANS = (
    "full",
    "streaming(sink=2, recent=9)",
    "locret(budget=9, chunk=6, local=4, decode_chunk=5)",
    "lazyllm(layers=[1, 2], keep=0.4)",
    "speed(cutoff=2)",
    "swiftkv(cutoff=2, share=1)",
    "quantized(group=16, residual=3, chunk=20)",
    "slowfast(budget=7, sink=2, recent=5, trigger='periodic', interval=3)",
)
READS = "sketch(budget=12, sink=1, recent=4, lag=3)"
each_plan = pytest.mark.parametrize("plan", PLANS)


@pytest.fixture(scope="module")
def llm():
    llm = LLM(small_model("llama"), prefill_chunk=10)
    llm.decoder.default_heads = RetainingHeads.random(HeadsConfig.of(llm.model, llm.decoder.shape, 8, "repeat"), seed=1)
    llm.decoder.default_convolutions = small_convolutions(llm)
    llm.decoder.default_indexers = small_indexers(llm)
    return llm


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def begun(llm, text, plan="full", most=64):
    session = llm.session(plan=plan, max_tokens=most)
    session.feed(text[:PROMPT])
    return session


@each_plan
def test_what_is_fed_in_pieces_is_what_logits_gives(llm, text, plan):
    expected = llm.logits(text, decode_from=PROMPT, plan=plan)
    session, done = llm.session(plan=plan, max_tokens=len(text) - PROMPT + 1), []
    rows = [session.feed(text[:PROMPT], progress=done.append)]
    for start, stop in ((PROMPT, PROMPT + 1), (PROMPT + 1, PROMPT + 6), (PROMPT + 6, len(text))):
        rows.append(session.feed(text[start:stop]))
        assert len(rows[-1]) == stop - start
        assert torch.equal(session.logits, rows[-1][-1])
    assert_same(torch.cat(rows), expected)
    assert sum(done) == len(session.prompt) == PROMPT


def test_full_attention_is_that_of_stock_transformers(llm, text):
    session = begun(llm, text)
    got = torch.cat((session.logits[None], session.feed(torch.tensor(text[PROMPT:]))))
    assert_same(got, stock_logits(llm.model, text)[PROMPT - 1 :])


@each_plan
def test_a_fork_goes_its_own_way(llm, text, plan):
    expected = llm.logits(text, decode_from=PROMPT, plan=plan)
    session = begun(llm, text, plan)
    session.feed(text[PROMPT : PROMPT + 4])
    twin, before = session.fork(), session.stats
    assert torch.equal(twin.logits, session.logits)
    other = twin.feed(text[::-1][:9])
    assert session.stats == before
    assert_same(session.feed(text[PROMPT + 4 :]), expected[5:])
    twin.close()
    session.feed([5])
    assert_same(other, llm.logits([*text[: PROMPT + 4], *text[::-1][:9]], decode_from=PROMPT, plan=plan)[5:])


@each_plan
def test_it_costs_what_generating_costs(llm, text, plan):
    new = 9
    [out] = llm.generate([text[:PROMPT]], SamplingParams(max_tokens=new, ignore_eos=True), plan=plan)
    session = begun(llm, text, plan, most=new)
    session.feed(out.token_ids[:-1])
    expected, got = out.stats.to_dict(), session.stats.to_dict()
    times = {name for name in expected if name.endswith("_s")}
    assert {name: got[name] for name in got if name not in times} == {
        name: expected[name] for name in expected if name not in times
    }
    assert 0 < got["ttft_s"] < got["total_s"]
    session.close()
    assert session.stats.to_dict() == got


def test_asking_what_it_costs_changes_nothing(llm, text):
    watched, other = (begun(llm, text, PLANS[3]) for _ in range(2))
    for token in text[PROMPT:]:
        assert watched.stats.new_tokens == watched.state.position - PROMPT + 1
        assert watched.held.units > 0
        assert torch.equal(watched.feed([token]), other.feed([token]))
    assert watched.stats.total_bytes == other.stats.total_bytes


@pytest.mark.parametrize("plan", [
    "fastkv(keep=0.75, layer=2, window=4, kernel=3) + locret(budget=9, chunk=6, local=4, decode_chunk=5)",
    "lazyllm(layers=[1, 2], keep=0.8) + locret(budget=9, chunk=6, local=4, decode_chunk=5)",
    "streaming(sink=2, recent=9) + quantized(group=16, residual=0, chunk=20)",
    *PLANS[1:],
])  # fmt: skip
def test_units_take_no_more_than_it_says(llm, text, plan):
    """Where the tokens of a prompt go on all at once, layers have had them all before any is evicted."""
    session = llm.session(plan=plan, max_tokens=len(text) - PROMPT + 1)
    session.feed(text[:PROMPT])
    session.feed(text[PROMPT:])
    bound = session.held.bound_bytes
    assert bound is None or session.stats.peak_cache_bytes <= bound
    assert (bound is None) == (session.plan.keep.identity)


def test_numbers_that_are_none_are_refused_at_once(llm, text):
    for ask, named in (
        (lambda: llm.session(max_tokens=2.5), "max_tokens=2.5"),
        (lambda: llm.logits(text, decode_from=2.0), "decode_from=2.0"),
        (lambda: LLM(llm.model, prefill_chunk=512.0), "prefill_chunk=512.0"),
        (lambda: LLM(llm.model, prefill_chunk="512"), "prefill_chunk='512'"),
        (lambda: LLM(llm.model, max_batch="8"), "max_batch='8'"),
        (lambda: llm.engine(max_sequences=True), "max_sequences=True"),
    ):
        with pytest.raises(InputError, match=f"{named} must be a whole number of at least 1"):
            ask()
    with pytest.raises(InputError, match="max_step_s='1' must be a number above 0"):
        llm.engine(max_step_s="1")
    with pytest.raises(InputError, match="messages must be a list"):
        llm.chat({"role": "user", "content": "a"})


@each_plan
def test_a_prompt_of_units_is_held_as_one_of_tokens(llm, text, plan):
    shape = llm.decoder.shape
    # Attention prunes the tokens of a prompt, and where units come without one all are kept.
    like = "full" if plan.startswith("lazyllm") else plan
    fed, filled = begun(llm, text, like), llm.session(plan=plan, max_tokens=64)
    filled.fill(*torch.randn(2, shape.kv_heads, PROMPT, shape.head_dim))
    assert (filled.held.units, filled.held.unit_bytes) == (fed.held.units, fed.held.unit_bytes)
    assert filled.held.bound_bytes == fed.held.bound_bytes
    assert filled.feed(text[PROMPT:]).isfinite().all()
    fed.feed(text[PROMPT:])
    assert like == "full" or filled.held.units == fed.held.units


def test_units_that_are_filled_in_are_those_that_are_read(text):
    """One layer, because all layers are given the same units."""
    model = small_model("llama")
    del model.model.layers[1:]
    model.config.num_hidden_layers = 1
    llm = LLM(model)
    fed, filled = begun(llm, text), llm.session(max_tokens=64)
    keys, values, _ = fed.state.caches[0].live()
    filled.fill(keys, values)
    assert_same(filled.feed(text[PROMPT:]), fed.feed(text[PROMPT:]))


def test_sessions_step_together_as_they_do_alone(llm, text):
    texts = [text, text[::-1], text[3:] + text[:3]]
    together, alone = ([begun(llm, each, plan) for each, plan in zip(texts, PLANS[1:], strict=False)] for _ in "ab")
    for step in range(PROMPT, len(text)):
        rows = feed_together(together, [each[step] for each in texts])
        assert_same(rows, torch.cat([session.feed([each[step]]) for session, each in zip(alone, texts, strict=True)]))
        assert torch.equal(together[1].logits, rows[1])
    assert [s.stats.new_tokens for s in together] == [s.stats.new_tokens for s in alone]
    assert [s.held for s in together] == [s.held for s in alone]


def test_where_one_session_takes_no_more_none_is_fed(llm, text):
    first, second = begun(llm, text, most=2), begun(llm, text, most=1)
    with pytest.raises(CapacityError, match="takes 0 more tokens, not 1"):
        feed_together([first, second], [5, 6])
    assert first.stats.new_tokens == 1
    assert first.feed([5]).isfinite().all()


def test_no_more_is_fed_than_was_said(llm, text):
    session = begun(llm, text, most=4)
    session.feed([5, 6])
    with pytest.raises(CapacityError, match="takes 1 more tokens, not 2; make one with more max_tokens"):
        session.feed([7, 8])
    twin = session.fork()
    for each in (session, twin):
        each.feed([7])
        with pytest.raises(CapacityError, match="takes 0 more tokens"):
            each.feed([8])


def test_what_cannot_be_fed_is_refused_before_any_work(llm, text, monkeypatch):
    monkeypatch.setattr("winnow.runtime.decoder.Decoder.embed", lambda *_: pytest.fail("the model was run"))
    limit = llm.decoder.shape.max_positions
    for ids, message in (
        ([], "empty"),
        ([97], "ids are 0 to 96"),
        (["a"], "ids are 0 to 96"),
        ("text", "no tokenizer"),
    ):
        with pytest.raises(InputError, match=message):
            llm.session().feed(ids)
    with pytest.raises(CapacityError, match=f"more than the model's {limit} positions"):
        llm.session(max_tokens=1).feed([5] * (limit + 1))
    with pytest.raises(CapacityError, match="exceed the model's"):
        llm.session(max_tokens=limit).feed(text)
    with pytest.raises(PlanError, match="unknown policy"):
        llm.session(plan="strem")
    with pytest.raises(InputError, match="max_tokens=0 must be a whole number of at least 1"):
        llm.session(max_tokens=0)


def test_a_session_without_a_prompt_has_nothing_to_show(llm):
    session = llm.session()
    for look in (lambda: session.stats, lambda: session.held, session.fork, lambda: feed_together([session], [5])):
        with pytest.raises(InputError, match="no prompt yet"):
            look()


def test_there_is_one_prompt(llm, text):
    keys, values = torch.zeros(2, llm.decoder.shape.kv_heads, 5, llm.decoder.shape.head_dim)
    session = begun(llm, text)
    with pytest.raises(InputError, match="has a prompt already"):
        session.fill(keys, values)
    filled = llm.session(max_tokens=2)
    filled.fill(keys, values)
    with pytest.raises(InputError, match="has a prompt already"):
        filled.fill(keys, values)


def test_a_closed_session_takes_and_holds_nothing(llm, text):
    with begun(llm, text) as session:
        twin = session.fork()
    for call in (lambda: session.feed([5]), lambda: feed_together([twin, session], [5, 6])):
        with pytest.raises(InputError, match="is closed"):
            call()
    assert (session.held.units, session.held.unit_bytes, session.held.beside_bytes) == (0, 0, 0)
    assert session.stats.cache_bytes > 0
    session.close()
    assert twin.feed([5]).isfinite().all()


def test_a_request_is_answered_as_generate_answers_it(text):
    llm = LLM(small_model("llama"), tokenizer=byte_tokenizer(), prefill_chunk=10)
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=4, ignore_eos=True)
    [expected] = llm.generate([text[:PROMPT]], params, plan=PLANS[1])
    [request] = llm.check([text[:PROMPT]], params, plan=PLANS[1])
    session = begun(llm, text, request.plan, most=params.max_tokens)
    answer = session.generate(request)
    assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text)
    assert answer.finish_reason == expected.finish_reason == "length"
    with pytest.raises(InputError, match="is closed"):
        session.feed([5])


def test_an_observer_is_told_of_every_layer(llm, text):
    class Layers(Observer):
        seen: tuple[int, ...] = ()

        def entered(self, layer, segment, hidden):
            self.seen += (layer,)

    observer = Layers()
    session = llm.session(max_tokens=2, observer=observer)
    session.feed(text[:4])
    session.feed([5])
    assert observer.seen == (*range(5), *range(5))


def test_every_policy_is_prepared_by_one_check(llm):
    """`prepare` refuses what a session would; what it accepts, a session runs."""
    for name, policy in POLICIES.items():
        plan = f"{name}({', '.join(f'{key}={value!r}' for key, value in policy.trial.items())})"
        assert llm.prepare(plan).policies[policy.verb] == policy(**policy.trial)
    with pytest.raises(PlanError, match="use one of them"):
        llm.prepare("lazyllm + streaming")


def resident(sessions):
    """Bytes of the memory of units that sessions reach, each piece once."""
    caches = [cache for session in sessions for cache in session.state.own_caches()]
    slabs = {id(slab): slab for cache in caches for slab in (cache.slab, *(each for each, _ in cache.memory._settled))}
    return sum(slab.nbytes for slab in slabs.values())


@pytest.mark.parametrize(
    "plan", [*PLANS, READS, "quest(page=2, budget=6, dense_layers=1)", "tidal(layers=[1], budget=3)"]
)
def test_forks_of_a_long_prompt_share_its_units_and_nothing_else(llm, plan, monkeypatch):
    """Each goes its own way and equals a session that never had a fork, whoever goes on or ends first."""
    monkeypatch.setattr(llm, "prefill_chunk", 50)
    ids = [3 + at * 7 % 90 for at in range(150)]
    ways = [[5 + 11 * at % 80 + way for at in range(9)] for way in range(3)]
    expected = []
    for way in ways:
        with llm.session(plan=plan, max_tokens=16) as alone:
            alone.feed(ids)
            expected.append(alone.feed([4, *way]))
    first = llm.session(plan=plan, max_tokens=16)
    first.feed(ids)
    alone_held = sum(first.state.held())
    begin = first.feed([4])
    second = first.fork()
    third = second.fork()
    sessions = [first, second, third]
    if plan == "full":
        prompt = sum(cache.unit_bytes for cache in first.state.caches) * 150
        assert resident(sessions) < 1.2 * prompt
        assert sum(first.state.held()) == prompt + prompt // 150 > alone_held  # each counts what it reaches
    rows = [[begin[0]] for _ in sessions]
    for at in range(9):
        for session, way, mine in zip(sessions, ways, rows, strict=True):
            mine.append(session.feed([way[at]])[0])
        if at == 4:
            third_more = third.fork()
    for mine, theirs in zip(rows, expected, strict=True):
        assert_same(torch.stack(mine), theirs)
    first.close()
    second.close()
    assert_same(third_more.feed(ways[2][5:]), expected[2][6:])


def test_a_fork_from_an_earlier_token(llm):
    ids = [3 + at * 7 % 90 for at in range(150)]
    whole = llm.logits([*ids[:100], 9, 10])
    session = llm.session(max_tokens=64)
    session.feed(ids)
    session.feed([5, 6, 7])
    for at in (100, 151, 153, 1):
        twin = session.fork(at=at)
        assert twin.held.units == at * llm.decoder.shape.layers * llm.decoder.shape.kv_heads
    twin = session.fork(at=100)
    assert_same(twin.feed([9, 10]), whole[100:102])
    assert_same(session.fork(at=151).feed([6]), session.fork(at=151).feed([6]))
    for none in (154, 0, 2.5, "2", True):
        with pytest.raises(InputError, match=f"at={none!r}"):
            session.fork(at=none)
    bounded = llm.session(plan="streaming(sink=2, recent=9)", max_tokens=8)
    bounded.feed(ids)
    with pytest.raises(PlanError, match=r"streaming.*not known any more"):
        bounded.fork(at=100)


def test_what_was_fed_after_a_fork_within_the_prompt_is_no_prompt():
    """A turn takes over whole chunks of a prompt alone: what decode steps made has other roundings."""
    ids = [3 + at * 7 % 90 for at in range(40)]
    llm = LLM(small_model("qwen3", dtype=torch.bfloat16), prefill_chunk=10, deterministic=True)
    session, whole = llm.session(max_tokens=64), llm.session(max_tokens=64)
    session.feed(ids[:31])
    fork = session.fork(at=5)
    fork.feed(ids[5:25])
    turn = fork.turn(ids[25:])
    whole.feed(ids)
    assert turn.stats.cached_tokens == 0
    assert torch.equal(turn.logits, whole.logits)


def test_within_a_prompt_whose_rows_chose_by_its_length_there_is_no_fork(llm):
    """From its end on there is: steps read everything."""
    session = llm.session(plan="xattention(threshold=0.5, stride=2, block=2)", max_tokens=8)
    session.feed([3 + at * 7 % 90 for at in range(40)])
    session.feed([5, 6])
    with pytest.raises(PlanError, match=r"xattention.*not known any more"):
        session.fork(at=30)
    assert_same(session.fork(at=41).feed([6]), session.logits[None])


def test_forks_do_not_keep_what_leaves_a_window(llm):
    """Codes of units that are gone go back, those that were shared with a fork too."""
    plan = "streaming(sink=2, recent=20) + quantized(bits=4, group=16, residual=0, chunk=20)"
    held = []
    for forks in (False, True):
        session = llm.session(plan=plan, max_tokens=200)
        session.feed([5 + at * 7 % 90 for at in range(60)])
        held.append([])
        for turn in range(8):
            twin = session.fork() if forks else None
            session.feed([7 + turn * 5 + at for at in range(20)])
            if twin is not None:
                twin.close()
            held[-1].append(sum(session.state.held()))
    assert held[0] == held[1]


@each_plan
def test_a_turn_computes_only_what_is_new(llm, text, plan):
    """It is a session that is fed all of it, whatever the one before does meanwhile."""
    session = begun(llm, text, plan)
    session.feed(text[PROMPT : PROMPT + 3])
    done = []
    second = session.turn(text[PROMPT + 3 : PROMPT + 8], progress=done.append)
    session.feed(text[::-1][:4])
    whole = llm.session(plan=plan, max_tokens=64)
    whole.feed(text[: PROMPT + 8])
    atol = 6e-2 if plan.startswith("quantized") else 1e-5
    torch.testing.assert_close(second.logits, whole.logits, rtol=0, atol=atol)
    fed = [each.feed(text[PROMPT + 8 : PROMPT + 12]) for each in (second, whole)]
    torch.testing.assert_close(*fed, rtol=0, atol=atol)
    taken = second.stats.cached_tokens
    assert taken == (PROMPT + 3 if plan.startswith(("full", "streaming", "swiftkv")) else 0)
    assert sum(done) == PROMPT + 8
    assert second.prompt == text[: PROMPT + 8]
    assert second.turn([5]).stats.cached_tokens == (PROMPT + 12 if taken else 0)


def test_a_turn_after_units_is_refused(llm):
    keys, values = torch.zeros(2, llm.decoder.shape.kv_heads, 5, llm.decoder.shape.head_dim)
    filled = llm.session(max_tokens=4)
    filled.fill(keys, values)
    with pytest.raises(InputError, match="began with units"):
        filled.turn([5])
    filled.close()
    with pytest.raises(InputError, match="is closed"):
        filled.turn([5])


@each_plan
def test_a_session_whose_beginning_is_interrupted_is_closed(llm, text, plan):
    """Before anything is fed, as in the middle of it: nothing is taken for what comes after a prompt."""
    for last in (0, PROMPT // 2):
        session, told = llm.session(plan=plan, max_tokens=9), []

        def interrupts(tokens, told=told, last=last):
            told.append(tokens)
            if sum(told) >= last:
                raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            session.feed(text[:PROMPT], progress=interrupts)
        with pytest.raises(InputError, match="the session is closed"):
            session.feed(text[:PROMPT])


def test_what_cannot_be_fed_together_is_refused_and_loses_nothing(text):
    llm, other = (LLM(small_model("llama")) for _ in range(2))
    first, second, stranger = llm.session(), llm.session(), other.session()
    for session in (first, second, stranger):
        session.feed(text[:12])
    for sessions, tokens, why in (
        ([], [], "one at least"),
        ([first, first], [5, 6], "different sessions"),
        ([first, stranger], [5, 6], "of one LLM"),
        ([first, second], [5], "1 tokens for 2 sessions"),
        ([first, second], [5, 1000], "token 1 is 1000"),
        ([first, second], [5, -1], "token 1 is -1"),
    ):
        with pytest.raises(InputError, match=why):
            feed_together(sessions, tokens)
    together = feed_together([first, second], [5, 6])
    for at, token in enumerate((5, 6)):
        alone = llm.session()
        alone.feed(text[:12])
        torch.testing.assert_close(together[at], alone.feed([token])[-1])
