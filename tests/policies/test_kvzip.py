"""KVzip against stock transformers: the scores from what its attention says, the choice over lists, and every count."""

import json
import subprocess

import pytest
import torch

from covering import covered
from driving import prefill
from evict_reference import held, run_reference, run_winnow
from kvzip_reference import chosen, scores_of
from models import small_model
from peer_engines import PYTHONS, needs_kvpress
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from trials import fresh, small_llm
from winnow import LLM, Plan, SamplingParams
from winnow.engine.bound import bound_bytes
from winnow.errors import CapacityError, InputError, PlanError
from winnow.policies.keep.kvzip import BEFORE, FIRST, LATER, KVzip

PROMPT = 31
ASKS = (5, 6, 7)


def repeated(ids, end, chunk):
    """[(row tokens, first, stop)], by hand."""
    chunks = [(start, min(start + chunk, end)) for start in range(0, end, chunk)]
    return [([*ASKS, *ids[max(0, first - 8) : first], *ids[first:stop]], first, stop) for first, stop in chunks]


@covered(
    (
        ("name", "parameters"),
        [
            ("llama", {}),
            ("llama", {"chunk": 64, "local": 1}),
            ("llama-9-3", {"chunk": 5, "sink": 4, "budget": 7}),
            ("qwen3", {"chunk": 26, "sink": 1}),
            ("olmo2", {"budget": 12}),
            ("llama", {"normalised": True}),
            ("llama-9-3", {"chunk": 5, "sink": 4, "budget": 7, "normalised": True}),
            ("qwen3", {"normalised": True, "budget": 7}),
            ("olmo2", {"budget": 12, "normalised": True}),
        ],
    ),
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, name, parameters, prefill_chunk):
    policy = KVzip(**{**KVzip.trial, **parameters})
    llm, end = LLM(small_model(name), prefill_chunk=prefill_chunk), PROMPT - policy.local
    scores = scores_of(llm.model, text, repeated(text, end, policy.chunk), policy.sink, policy.normalised)
    stay = chosen(scores, policy.sink, policy.budget)
    got, sets = run_winnow(llm, text[:42], policy, PROMPT)
    tail = [*range(end, PROMPT)]
    assert sets[0] == [[head + tail for head in layer] for layer in stay]
    assert len({len(head) for layer in stay for head in layer}) > 2  # heads and layers differ in how many
    if name in ("llama", "llama-9-3"):  # the reference's own modules are Llama's
        expected, _ = run_reference(
            llm.model, text[:42], None, prompt=PROMPT, budget=policy.budget, chunk=None, local=policy.local,
            positions="original", decode_chunk=None, shared=lambda layer, notes, heads: stay[layer],
        )  # fmt: skip
        torch.testing.assert_close(got, expected[PROMPT - 1 :], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("chunk", "local", "budget"), [(12, 4, 9), (27, 4, 5), (5, 1, 20), (12, 20, 9)])
def test_what_it_costs_is_what_the_formulas_say(text, chunk, local, budget):
    llm, new = LLM(small_model("llama"), prefill_chunk=10), 6
    plan = Plan(keep=KVzip(budget=budget, chunk=chunk, sink=2, local=local, asks=ASKS))
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    stats = llm.generate([text[:PROMPT]], params, plan=plan)[0].stats
    shape, end = llm.decoder.shape, PROMPT - local
    rows = [len(tokens) for tokens, _, _ in repeated(text, end, chunk)] if end > budget else []
    assert [len(each.tokens) for each in plan.keep.repeats(text[:PROMPT], llm.services)] == rows
    assert stats.rows_computed == shape.layers * (PROMPT + sum(rows) + new - 1)
    assert stats.rows_full == shape.layers * (PROMPT + new - 1)
    heads = shape.layers * shape.kv_heads
    kept = heads * (min(end, budget) + local + new - 1)
    assert stats.cache_bytes == kept * shape.unit_bytes
    most = max(end + max(rows, default=0), 0)
    if end + max(rows, default=0) > min(end, budget * shape.layers) + local + new - 1:
        assert stats.peak_cache_bytes == heads * most * shape.unit_bytes
        assert stats.total_bytes == heads * most * (shape.unit_bytes + 4)  # and a score of each
    assert max(rows, default=0) <= plan.keep.repeated(PROMPT)
    assert stats.total_bytes <= bound_bytes(plan, shape, PROMPT, new - 1, 10)
    assert stats.units_read == sum(heads * (min(end, budget) + local + step) for step in range(1, new))


def test_admission_knows_what_is_held_until_the_choice(text):
    llm = LLM(small_model("llama"), prefill_chunk=10)
    plan, params = Plan(keep=KVzip(**KVzip.trial)), SamplingParams(max_tokens=4, ignore_eos=True)
    needed = bound_bytes(plan, llm.decoder.shape, PROMPT, 3, 10)
    with pytest.raises(CapacityError, match="max_cache_bytes"):
        llm.engine(max_cache_bytes=needed - 1).add(text[:PROMPT], params, plan=plan)
    engine = llm.engine(max_step_tokens=10, max_cache_bytes=needed)
    for _ in range(2):
        engine.add(text[:PROMPT], params, plan=plan)
    most, ended = 0, []
    while not engine.idle:
        ended += [output.completion for output in engine.step() if output.completion is not None]
        most = max(most, sum(sum(job.state.held()) for entry in engine._running for job in entry.jobs))
    assert most <= needed
    assert [each.finish_reason for each in ended] == ["length"] * 2
    assert ended[0].token_ids == ended[1].token_ids


def test_others_go_on_while_a_prompt_is_read_once_more(text):
    """Company, and small steps: the same tokens; log-probabilities of the prompt are those of its own rows."""
    llm = LLM(small_model("llama"), prefill_chunk=64)
    plan, params = Plan(keep=KVzip(**KVzip.trial)), SamplingParams(max_tokens=6, ignore_eos=True, prompt_logprobs=1)
    [alone] = llm.generate([text[:PROMPT]], params, plan=plan)
    [other] = llm.generate([text[5:20]], params)
    engine, told = llm.engine(max_step_tokens=3), []
    engine.add(text[5:20], params)
    engine.enqueue(llm.check([text[:PROMPT]], params, plan=plan)[0], progress=told.append)
    ended = {out.request_id: out.completion for out in engine.run() if out.completion is not None}
    assert [ended[1].token_ids, ended[2].token_ids] == [other.token_ids, alone.token_ids]
    assert sum(told) == PROMPT  # what is read once more is no progress
    for mine, its in zip(ended[2].prompt_logprobs[1:], alone.prompt_logprobs[1:], strict=True):
        assert mine.keys() == its.keys()
        assert all(abs(mine[token] - its[token]) < 1e-4 for token in mine)
    full = llm.generate([text[:PROMPT]], params)[0].prompt_logprobs[1 : PROMPT - 4]
    for mine, its in zip(alone.prompt_logprobs[1 : PROMPT - 4], full, strict=True):  # up to the choice
        assert all(abs(mine[token] - its[token]) < 1e-4 for token in its)


def test_a_deterministic_model_keeps_the_same_to_the_bit(text):
    llm = LLM(small_model("llama"), prefill_chunk=10, deterministic=True)
    plan = Plan(keep=KVzip(**KVzip.trial))
    params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=1)
    [alone] = llm.generate([text[:PROMPT]], params, plan=plan)
    engine = llm.engine(max_step_tokens=4)
    engine.add(text[3:25], params)
    engine.add(text[:PROMPT], params, plan=plan)
    [beside] = [out.completion for out in engine.run() if out.completion is not None and out.request_id == 2]
    assert beside.logprobs == alone.logprobs


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_windows_are_as_if_nothing_had_been_read_once_more(name, text):
    """In a layer with a window the last units before the choice are those of full attention, and none besides."""
    llm = small_llm(name)
    window = llm.decoder.shape.windows[0]
    state, prompt = fresh(llm, Plan(keep=KVzip(**KVzip.trial)), text)
    full, _ = fresh(llm, Plan(), text)
    for each in (state, full):
        prefill(llm.decoder, each, prompt, llm.prefill_chunk)
    mine, its = (each.caches[0].live() for each in (state, full))
    assert mine[2].tolist() == its[2].tolist() == [*range(PROMPT - window + 1, PROMPT)]
    for one, other in zip(mine[:2], its[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    sets = held(state)
    assert sum(len(head) for layer in sets[1::2] for head in layer) == 4 * (9 + 4)  # two layers of two heads


def test_a_model_with_windows_alone_is_not_read_once_more(text):
    llm = small_llm("mistral")
    state, prompt = fresh(llm, Plan(keep=KVzip(**KVzip.trial)), text)
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    assert state.stats.rows_computed == state.stats.rows_full


def test_words_are_those_of_the_paper():
    """By the tokenizer; a prompt with a user's turn is answered to by the template."""
    for template, turn in ((None, "\n"), (byte_tokenizer().chat_template, "<assistant>")):
        tokenizer = byte_tokenizer(template)
        llm = LLM(tiny_model(), tokenizer=tokenizer)
        ids = tokenizer("<user>" + "abcdefgh" * 20)["input_ids"]
        policy = KVzip(budget=9, chunk=60, sink=2, local=3)
        read = policy.repeats(ids, llm.services)
        texts = [tokenizer.decode(each.tokens) for each in read]
        text = tokenizer.decode(ids)
        assert texts[0] == FIRST + turn + text[:60]
        assert texts[1] == LATER + text[60 - BEFORE : 60] + turn + text[60:120]
        assert [(each.first, each.stop) for each in read] == [(0, 60), (60, 120), (120, len(ids) - 3)]
        assert max(len(each.tokens) for each in read) <= policy.repeated(len(ids))
    plain = LLM(tiny_model(), tokenizer=byte_tokenizer(None))
    [out] = plain.generate(["abcdefgh" * 20], SamplingParams(max_tokens=2), plan="kvzip(budget=9, chunk=60, local=3)")
    assert out.stats.rows_computed > 2 * out.stats.rows_full


def test_words_that_a_shortened_prompt_may_take_are_counted_before_any_work(monkeypatch):
    """One that has lost its user's turn is asked with a line break, which is the longer way here."""
    monkeypatch.setattr("winnow.policies.keep.kvzip.closing", lambda ids, tokenizer: [] if ids else None)
    monkeypatch.setattr("winnow.policies.keep.kvzip.ASKED", len(LATER))
    llm = LLM(tiny_model(), tokenizer=byte_tokenizer(None))
    with pytest.raises(InputError, match=f"takes {len(LATER) + 1} tokens of this tokenizer, more than {len(LATER)}"):
        llm.check([[5] * 60], plan="random_drop + kvzip(budget=9, local=3)")


@pytest.mark.parametrize(("budget", "chunk", "room"), [(9, 200, 311), (9, 512, 259), (400, 200, 408), (511, 200, 511)])
def test_the_longest_prompt_is_the_longest_that_is_taken(budget, chunk, room):
    """512 positions: the prompt's, but for the last 8, those of a chunk behind it, and 9 that ask for this one."""
    llm, params = LLM(small_model("llama")), SamplingParams(max_tokens=2)
    plan = f"kvzip(budget={budget}, local=8, chunk={chunk}, asks=[5])"
    assert llm.room(2, plan) == room
    llm.check([[5] * room], params, plan=plan)
    with pytest.raises(CapacityError):
        llm.check([[5] * (room + 1)], params, plan=plan)


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ("kvzip(budget=9)", InputError, r"no tokenizer; give the token ids that ask for it: kvzip\(asks=\[...\]\)"),
        ("kvzip(budget=9, asks=[5, 97])", InputError, "token 97, which is beyond the model's 97"),
        ("kvzip(budget=9, local=400, asks=[5])", InputError, "use at most local=399"),
        ("kvzip(budget=9, local=1, chunk=200, asks=[5])", CapacityError, "608 positions.*512.*smaller chunk than 200"),
        ("kvzip(budget=9, asks=[5]) + quest", PlanError, "kvzip keeps different numbers; use one of the two"),
        ("kvzip(budget=9, asks=[5]) + lazyllm", PlanError, "reads a prompt once more.*most of it stops"),
    ],
)
def test_what_it_cannot_do_is_refused(plan, error, message):
    llm = LLM(small_model("llama"))
    with pytest.raises(error, match=message):
        llm.generate([[5] * 400], SamplingParams(max_tokens=2), plan=plan)


def test_a_tokenizer_of_another_model_cannot_ask():
    llm = LLM(small_model("llama"), tokenizer=byte_tokenizer())
    with pytest.raises(InputError, match=r"with token \d+, which is beyond the model's 97; give others"):
        llm.check([[5] * 40], SamplingParams(max_tokens=2), plan="kvzip(budget=9)")


def test_parameters_are_refused_where_nothing_would_be_chosen():
    with pytest.raises(PlanError, match="sink=4 must be below budget=4"):
        KVzip(budget=4)
    with pytest.raises(PlanError, match="from 1 to 128 token ids"):
        KVzip(asks=())


def test_one_context_is_asked_many_times(text):
    """The choice goes by no question: forks of a session answer as sessions of their own do."""
    llm = LLM(small_model("llama"), prefill_chunk=10)
    plan = Plan(keep=KVzip(budget=9, chunk=12, sink=2, local=1, asks=ASKS))
    context = llm.session(plan=plan, max_tokens=8)
    context.feed(text[:PROMPT])
    for question in ([7, 9], [11, 3, 20]):
        own = llm.session(plan=plan, max_tokens=8)
        own.feed(text[:PROMPT])
        torch.testing.assert_close(context.fork().feed(question), own.feed(question), rtol=0, atol=1e-5)


KVPRESS = """
import json, sys, torch, kvpress
from transformers import AutoModelForCausalLM, DynamicCache
directory, ids, share, chunk, plus = json.loads(sys.stdin.read())
model = AutoModelForCausalLM.from_pretrained(directory).eval()
press = kvpress.KVzipPress(compression_ratio=share, chunk_size=chunk, kvzip_plus_normalization=plus)
with torch.inference_mode(), press(model):
    model.model(input_ids=torch.tensor([ids]), cache=DynamicCache())
gone = [torch.stack(layer.self_attn.masked_key_indices[1:]).tolist() for layer in model.model.layers]
print(json.dumps(gone))
"""


@needs_kvpress
@pytest.mark.parametrize(("chunk", "normalised"), [(60, False), (2048, False), (60, True)])
def test_kvpress_keeps_the_same(chunk, normalised, tmp_path):
    model, tokenizer = tiny_model(), byte_tokenizer(None)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer("The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 3)["input_ids"][:201]
    asked = json.dumps([str(tmp_path), ids[:200], 0.75, chunk, normalised])
    ran = subprocess.run([PYTHONS["kvpress"], "-c", KVPRESS], input=asked, capture_output=True, text=True, check=True)
    llm = LLM(model, tokenizer=tokenizer)
    state, prompt = fresh(
        llm, Plan(keep=KVzip(budget=50, chunk=chunk, local=1, normalised=normalised)), ids, prompt=201
    )
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    for (heads, units), layer in zip(json.loads(ran.stdout.splitlines()[-1]), held(state), strict=True):
        gone = {head: {unit for at, unit in zip(heads, units, strict=True) if at == head} for head in range(len(layer))}
        assert [sorted({*range(200)} - gone[head]) for head in range(len(layer))] == [kept[:-1] for kept in layer]
