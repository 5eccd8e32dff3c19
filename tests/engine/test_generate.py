"""Generation: what stock transformers does under full attention, and everything around a token."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from models import SMALL, small_model
from tokenizers_for_tests import byte_tokenizer, fallback_tokenizer, spacing_tokenizer
from winnow import LLM, SamplingParams
from winnow.engine.text import TextStream
from winnow.errors import CapacityError, InputError, ModelError, PlanError, UnsupportedModelError

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(device):
    torch.manual_seed(0)
    config = LlamaConfig(**{**SMALL, "vocab_size": 259})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(8)  # logits far apart: the text varies and probabilities are not flat
    return LLM(model, device=device, tokenizer=byte_tokenizer(), prefill_chunk=16)


def test_greedy_equals_stock_generate(llm):
    ids = llm.tokenizer("The quick brown fox jumps over the lazy dog.")["input_ids"]
    prompt = torch.tensor([ids], device=llm.device)
    stock = llm.model.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=None)
    [out] = llm.generate([ids], SamplingParams(max_tokens=20, ignore_eos=True))
    assert out.token_ids == stock[0, len(ids) :].tolist()
    assert out.finish_reason == "length"


def test_a_batch_gives_what_each_prompt_gives_alone(llm):
    prompts = ["a", "Two words", "A longer prompt, of several tokens", "0123456789" * 5]
    together = llm.generate(prompts, GREEDY)
    assert [out.prompt_index for out in together] == [0, 1, 2, 3]
    for prompt, out in zip(prompts, together, strict=True):
        assert out.token_ids == llm.generate(prompt, GREEDY)[0].token_ids


def test_more_prompts_than_fit_a_batch(llm):
    prompts = [f"prompt {i}" for i in range(5)]
    expected = [out.token_ids for out in llm.generate(prompts, GREEDY)]
    llm.max_batch, before = 2, llm.max_batch
    try:
        assert [out.token_ids for out in llm.generate(prompts, GREEDY)] == expected
    finally:
        llm.max_batch = before


@pytest.mark.parametrize(
    "choice",
    [
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 1.0, "repetition_penalty": 1.5},
    ],
)
def test_a_seed_gives_the_same_sample_whatever_the_batch(llm, choice):
    params = SamplingParams(max_tokens=12, seed=5, ignore_eos=True, **choice)
    alone = llm.generate("hello", params)[0].token_ids
    assert llm.generate(["other", "hello"], params)[1].token_ids == alone
    others = [
        llm.generate("hello", SamplingParams(**{**params.__dict__, "seed": s}))[0].token_ids for s in range(6, 12)
    ]
    assert any(other != alone for other in others)


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        ({"top_k": 2}, lambda p: p.topk(2).indices),
        ({"min_p": 0.5}, lambda p: (p >= 0.5 * p.max()).nonzero()[:, 0]),
        (
            {"top_p": 0.3},
            lambda p: p.sort(descending=True).indices[
                : int((p.sort(descending=True).values.cumsum(0) < 0.3).sum()) + 1
            ],
        ),
    ],
)
def test_truncated_sampling_stays_inside_its_set(llm, choice, allowed):
    ids = llm.tokenizer("hello")["input_ids"]
    inside = set(allowed(llm.logits(ids)[-1].softmax(-1)).tolist())
    params = SamplingParams(max_tokens=1, temperature=1.0, n=40, seed=0, ignore_eos=True, **choice)
    drawn = {out.token_ids[0] for out in llm.generate([ids], params)}
    assert drawn <= inside
    free = SamplingParams(max_tokens=1, temperature=1.0, n=40, seed=0, ignore_eos=True)
    assert not {out.token_ids[0] for out in llm.generate([ids], free)} <= inside


def test_repetition_penalty_lowers_what_was_said(llm):
    plain = llm.generate("hello", GREEDY)[0].token_ids
    params = SamplingParams(max_tokens=12, ignore_eos=True, repetition_penalty=3.0)
    penalised = llm.generate("hello", params)[0].token_ids
    assert len(set(plain)) < len(plain)
    assert len(set(penalised)) == len(penalised)


def test_samples_of_one_prompt_share_its_prefill_and_differ(llm):
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=3, n=3, ignore_eos=True)
    outs = llm.generate(["hello", "you"], params)
    assert [(o.prompt_index, o.sample_index) for o in outs] == [(p, s) for p in (0, 1) for s in (0, 1, 2)]
    assert len({tuple(o.token_ids) for o in outs[:3]}) > 1
    first = llm.generate("hello", SamplingParams(max_tokens=10, temperature=1.0, seed=3, ignore_eos=True))[0]
    assert outs[0].token_ids == first.token_ids


def test_stop_tokens_several_and_the_models_own(llm):
    tokens = llm.generate("hello", GREEDY)[0].token_ids
    chosen = [tokens[3], tokens[6]]
    first = min(tokens.index(t) for t in chosen)
    [out] = llm.generate("hello", SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=chosen))
    assert out.token_ids == tokens[: first + 1]
    assert out.finish_reason == "stop"
    assert out.text == llm.tokenizer.decode(tokens[:first])
    llm.model.generation_config.eos_token_id = [tokens[3], 2]
    try:
        [own] = llm.generate("hello", SamplingParams(max_tokens=12))
        [ignored] = llm.generate("hello", GREEDY)
    finally:
        llm.model.generation_config.eos_token_id = 2
    assert own.token_ids == tokens[: tokens.index(tokens[3]) + 1]
    assert ignored.token_ids == tokens


def test_stop_strings_end_the_text_and_are_not_in_it(llm):
    text = llm.generate("hello", GREEDY)[0].text
    stop = text[4:6]
    [out] = llm.generate("hello", SamplingParams(max_tokens=12, ignore_eos=True, stop=["never", stop]))
    assert out.text == text[: text.index(stop)]
    assert out.finish_reason == "stop"
    assert "".join(llm.stream("hello", SamplingParams(max_tokens=12, ignore_eos=True, stop=stop))) == out.text


def test_stream_joins_to_the_text(llm):
    ended = []
    pieces = list(llm.stream("hello", SamplingParams(max_tokens=30, ignore_eos=True), on_finish=ended.append))
    assert (
        "".join(pieces)
        == ended[0].text
        == llm.generate("hello", SamplingParams(max_tokens=30, ignore_eos=True))[0].text
    )
    assert len(pieces) > 1


@pytest.mark.parametrize("text", ["naïve café", "日本語のテキスト", "mixed 🙂 emoji 👩‍🚀!", "plain"])
def test_streamed_pieces_are_valid_text_at_multi_byte_boundaries(text):
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, ())
    pieces = [stream.push(token) for token in tokenizer(text)["input_ids"]] + [stream.finish()]
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


def test_tokens_without_text_stand_in_no_characters_way():
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, ())
    pieces = [stream.push(tokenizer.eos_token_id) for _ in range(9)]
    pieces += [stream.push(token) for token in tokenizer("🙂")["input_ids"]] + [stream.finish()]
    assert "".join(pieces) == "🙂"


def test_a_character_cut_short_is_shown_at_the_end_only():
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, ())
    pieces = [stream.push(token) for token in tokenizer("é")["input_ids"][:1]]
    assert pieces == [""]
    assert stream.finish() == "�"


def test_a_byte_of_no_character_stops_no_stream():
    """Bytes as fallbacks: one that belongs to no character makes the decoder doubt those before it."""
    stream = TextStream(fallback_tokenizer(), ())
    ids = [257, *(byte + 1 for byte in "é".encode()), 0xFF + 1, 258, 257]
    pieces = [stream.push(token) for token in ids] + [stream.finish()]
    assert pieces[0] == " a"
    assert "".join(pieces).endswith(" sea a")
    assert "�" in "".join(pieces)


def test_a_text_that_goes_on_keeps_its_first_space():
    tokenizer = spacing_tokenizer()
    for before, text in (([3, 4], " the the"), ([], "the the")):
        stream = TextStream(tokenizer, (), before)
        assert "".join([*map(stream.push, (3, 3)), stream.finish()]) == text
    stream = TextStream(tokenizer, (" the",), [4])
    assert (stream.push(3), stream.stopped, stream.text) == ("", True, "")


def test_a_text_that_begins_inside_a_character_has_the_rest_of_it():
    tokenizer = byte_tokenizer()
    first, second = tokenizer("é")["input_ids"]
    stream = TextStream(tokenizer, (), [first])
    assert stream.push(second) + stream.finish() == "�"


def test_logprobs_are_of_the_raw_distribution(llm):
    ids = llm.tokenizer("hello")["input_ids"]
    [out] = llm.generate([ids], SamplingParams(max_tokens=4, logprobs=3, temperature=0.5, seed=1, ignore_eos=True))
    expected = llm.logits(ids + out.token_ids[:-1])[len(ids) - 1 :].log_softmax(-1)
    for row, token, report in zip(expected, out.token_ids, out.logprobs, strict=True):
        top = row.topk(3)
        assert set(report) == {*top.indices.tolist(), token}
        for key, value in report.items():
            assert value == pytest.approx(float(row[key]), abs=1e-4)


def test_chat_uses_the_template(llm):
    messages = [{"role": "user", "content": "hi"}]
    ids = llm.tokenizer("<user>hi<assistant>")["input_ids"]
    assert llm.render(messages) == ids
    assert llm.chat(messages, GREEDY)[0].token_ids == llm.generate([ids], GREEDY)[0].token_ids
    assert len(llm.chat([messages, messages], GREEDY)) == 2


def test_times_are_ordered(llm):
    stats = llm.generate("hello", GREEDY)[0].stats
    assert 0 < stats.ttft_s < stats.total_s
    assert stats.tpot_s == pytest.approx((stats.total_s - stats.ttft_s) / 11)
    assert stats.to_dict()["tpot_s"] == stats.tpot_s


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda m: m.generate(""), InputError, "empty"),
        (lambda m: m.generate([]), InputError, "no prompts"),
        (lambda m: m.generate([[]]), InputError, "empty"),
        (lambda m: m.generate([[5, 259]]), InputError, "259"),
        (lambda m: m.generate([[5, -1]]), InputError, "-1"),
        (lambda m: m.generate([[5, "a"]]), InputError, "token 1 is 'a'"),
        (lambda m: m.generate([None]), InputError, "prompt 0"),
        (lambda m: m.generate(None), InputError, "NoneType"),
        (lambda m: m.generate(m.tokenizer("hi")), InputError, "BatchEncoding"),
        (lambda m: m.generate([[[5, 6]]]), InputError, "token 0"),
        (lambda m: m.generate([[5] * 513]), CapacityError, "512"),
        (lambda m: m.generate([[5] * 500], SamplingParams(max_tokens=14)), CapacityError, "max_tokens of at most 13"),
        (lambda m: m.generate("hi", plan="nothing"), PlanError, "unknown policy"),
        (lambda m: m.chat([]), InputError, "empty"),
        (lambda m: m.chat([{"role": "user"}]), InputError, "message 0"),
        (lambda m: m.stream("hi", SamplingParams(n=2, temperature=1.0)), InputError, "one sample"),
        (lambda m: m.logits([5, 6], plan="streaming(2, 4)"), PlanError, "decode_from"),
        (lambda m: m.logits([5, 6], decode_from=3), InputError, "decode_from=3"),
    ],
)
def test_bad_input_is_refused_before_any_work(llm, call, error, says, monkeypatch):
    monkeypatch.setattr("winnow.runtime.decoder.Decoder.embed", lambda *_: pytest.fail("the model was run"))
    with pytest.raises(error, match=says):
        call(llm)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"n": 0},
        {"n": 2},
        {"stop": [""]},
        {"logprobs": -1},
        {"max_tokens": 1.5},
        {"max_tokens": "5"},
        {"stop": None},
        {"stop_token_ids": 5},
    ],
)
def test_sampling_parameters_out_of_range(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_without_a_tokenizer_token_ids_still_work(llm):
    bare = LLM(llm.model)
    assert bare.generate([[5, 6, 7]], GREEDY)[0].text == ""
    with pytest.raises(InputError, match="tokenizer"):
        bare.generate("hi")
    with pytest.raises(InputError, match="stop_token_ids"):
        bare.generate([[5]], SamplingParams(stop="x"))


def test_the_last_position_can_be_used(llm):
    """A prompt that fills all positions may still be followed by the one token its logits give."""
    [out] = llm.generate([[5] * 512], SamplingParams(max_tokens=1, ignore_eos=True))
    assert len(out.token_ids) == 1


def test_a_loaded_model_can_change_dtype(llm):
    cast = LLM(small_model("llama"), dtype="bfloat16")
    assert cast.dtype is torch.bfloat16
    assert cast.model.model.rotary_emb.inv_freq.dtype is torch.float32
    alone = small_model("llama").model.rotary_emb.inv_freq
    torch.testing.assert_close(cast.model.model.rotary_emb.inv_freq, alone, rtol=0, atol=0)
    with pytest.raises(ModelError, match="int8"):
        LLM(small_model("llama"), dtype="int8")


def test_prompts_may_be_arrays_and_tensors(llm):
    expected = llm.generate([[5, 6, 7]], GREEDY)[0].token_ids
    for prompts in (np.array([5, 6, 7]), torch.tensor([[5, 6, 7]]), [np.array([5, 6, 7])], list(np.array([5, 6, 7]))):
        [out] = llm.generate(prompts, GREEDY)
        assert out.token_ids == expected


def test_the_tokenizers_own_end_stops_too(llm):
    tokens = llm.generate("hello", GREEDY)[0].token_ids
    own = llm.tokenizer.eos_token
    llm.tokenizer.eos_token = llm.tokenizer.convert_ids_to_tokens(tokens[2])
    try:
        [out] = llm.generate("hello", SamplingParams(max_tokens=12))
    finally:
        llm.tokenizer.eos_token = own
    assert out.token_ids == tokens[: tokens.index(tokens[2]) + 1]


def test_a_template_that_refuses(llm):
    llm.tokenizer.chat_template, before = "{{ raise_exception('no system role') }}", llm.tokenizer.chat_template
    try:
        with pytest.raises(InputError, match="no system role"):
            llm.chat([{"role": "system", "content": "x"}])
    finally:
        llm.tokenizer.chat_template = before


def test_a_stop_string_that_the_last_token_completes(llm):
    text = llm.generate("hello", GREEDY)[0].text
    [out] = llm.generate("hello", SamplingParams(max_tokens=12, ignore_eos=True, stop=text[-1]))
    assert out.finish_reason == "stop"


@pytest.mark.threads
def test_threads_share_a_model(llm):
    expected = [llm.generate(f"prompt {i}", GREEDY)[0].token_ids for i in range(6)]
    twin = LLM(llm.model, tokenizer=llm.tokenizer)
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda i: (llm, twin)[i % 2].generate(f"prompt {i}", GREEDY)[0].token_ids, range(6)))
    assert got == expected
    assert llm.model.config._attn_implementation == "eager"


@pytest.mark.threads
def test_the_users_model_is_never_touched():
    """Another thread runs it natively, in training mode, while Winnow generates: both give what they give alone."""
    model = small_model("llama").train()
    llm, ids = LLM(model), torch.arange(5, 25)[None]
    before = {name: type(module) for name, module in model.named_modules()}
    implementation = model.config._attn_implementation
    alone, expected = model(ids).logits, llm.generate([[5, 6, 7]], GREEDY)[0].token_ids
    with ThreadPoolExecutor(1) as pool:
        native = pool.submit(lambda: [model(ids).logits for _ in range(20)])
        while not native.done():
            assert llm.generate([[5, 6, 7]], GREEDY)[0].token_ids == expected
            assert model.training
            assert model.config._attn_implementation == implementation
    assert all(torch.equal(logits, alone) for logits in native.result())
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert all(a is b for a, b in zip(model.parameters(), llm.decoder.tree.parameters(), strict=True))


def test_a_model_cast_behind_the_llms_back_is_refused():
    model = small_model("llama")
    llm = LLM(model)
    model.double()
    with pytest.raises(ModelError, match="make a new LLM"):
        llm.generate([[5, 6]], GREEDY)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), 5, None])
def test_what_is_no_model(model):
    with pytest.raises(ModelError, match=type(model).__name__):
        LLM(model)


@pytest.mark.parametrize(
    "given",
    [{"weights": "packed"}, {"plan": "tidal(layers=[99])"}, {"heads": "nowhere"}, {"convolutions": "nowhere"},
     {"indexers": "nowhere"}],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_a_model_is_left_as_it_was_where_something_beside_it_is_refused(given):
    model = small_model("llama")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises((ModelError, PlanError)):
        LLM(model, dtype="bfloat16", **given)
    assert model.dtype is torch.float32
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_no_token_is_left_before_min_tokens(llm):
    every = tuple(range(llm.decoder.shape.vocab))
    with pytest.raises(InputError, match="every token is a stop token"):
        llm.generate([[5, 6]], SamplingParams(max_tokens=4, min_tokens=2, stop_token_ids=every))


def test_an_unsupported_model_is_left_as_it_was():
    model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20))
    with pytest.raises(UnsupportedModelError, match="gpt2"):
        LLM(model, dtype="bfloat16")
    assert model.dtype is torch.float32
