"""What may come next: masks, biases and penalties against a restatement, schemas, probabilities of the prompt."""

import json
import math
import sys

import pytest
import torch

from models import small_model
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.engine.request import Request
from winnow.engine.sampler import Sampler
from winnow.errors import InputError, MissingExtraError, PlanError

VOCAB, STOP = 23, frozenset({2, 5})


@pytest.fixture(scope="module")
def llm():
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16)


def restated(logits, params, prompt, new):
    """Probabilities of the next token, by the documented order, token by token."""
    scores = [float(value) for value in logits]
    for token in range(VOCAB):
        if token in STOP and len(new) < params.min_tokens:
            scores[token] = -math.inf
        scores[token] += params.logit_bias.get(token, 0.0)
        if token in prompt + new:
            penalty = params.repetition_penalty
            scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
        if token in new:
            scores[token] -= params.presence_penalty + params.frequency_penalty * new.count(token)
        scores[token] /= params.temperature or 1
    weights = [math.exp(score - max(scores)) for score in scores]
    return truncated([weight / sum(weights) for weight in weights], params)


def truncated(shares, params):
    """What top_k leaves, of that the fewest with a share of top_p, and of those none below min_p of the likeliest."""
    if params.top_k:
        shares = only(shares, sorted(range(VOCAB), key=lambda token: -shares[token])[: params.top_k])
    if params.top_p < 1:
        order, told, kept = sorted(range(VOCAB), key=lambda token: -shares[token]), 0.0, []
        while told < params.top_p:
            kept.append(order[len(kept)])
            told += shares[kept[-1]]
        shares = only(shares, kept)
    return only(shares, [token for token in range(VOCAB) if shares[token] >= params.min_p * max(shares)])


def only(shares, kept):
    total = sum(shares[token] for token in kept)
    return [share / total if token in kept else 0.0 for token, share in enumerate(shares)]


@pytest.mark.parametrize(
    "given",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": -0.7, "temperature": 0.6},
        {"logit_bias": {3: 4.0, 9: -100.0}},
        {"min_tokens": 4},
        {"top_k": 4},
        {"top_p": 0.6, "temperature": 1.4},
        {"min_p": 0.1},
        {"top_k": 9, "top_p": 0.8, "min_p": 0.1},
        {"repetition_penalty": 1.3, "presence_penalty": -2.0, "frequency_penalty": 2.0, "logit_bias": {0: 2.5, 5: 9.0},
         "min_tokens": 2, "temperature": 1.7},
    ],
)  # fmt: skip
def test_what_is_drawn_has_the_restated_probabilities(given):
    prompt, params = [1, 7, 7, 3], SamplingParams(**{"temperature": 1.0} | given, seed=5)
    sampler = Sampler(Request(0, prompt, params, None, STOP), torch.device("cpu"))
    drawn, source = [], torch.Generator().manual_seed(5)
    for step in range(30):
        logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(step)) * 2
        kept = logits.clone()
        expected = torch.tensor(restated(logits, params, prompt, drawn))
        token = sampler.next(logits)
        assert token == int(torch.multinomial(expected, 1, generator=source))
        assert torch.equal(logits, kept)
        drawn.append(token)
    assert len(set(drawn)) > 5


def test_greedy_goes_by_bias_and_penalty():
    params = SamplingParams(presence_penalty=2.0, logit_bias={4: 1.5})
    sampler = Sampler(Request(0, [1], params, None, STOP), torch.device("cpu"))
    logits = torch.zeros(VOCAB)
    logits[7] = 1.0
    assert [sampler.next(logits) for _ in range(2)] == [4, 7]


def test_a_whole_number_is_a_penalty_too(llm):
    one, two = (llm.generate([[1, 5, 6, 7]], SamplingParams(max_tokens=8, repetition_penalty=p)) for p in (2, 2.0))
    assert one[0].token_ids == two[0].token_ids


def test_seeds_are_those_of_63_bits():
    for seed in (2**62 + 1, 2**63 - 1):
        assert SamplingParams(seed=seed).seed == seed


def test_an_end_token_that_there_is_none_of_is_none():
    """Some configs say -1, which is no place in a vocabulary."""
    model = small_model("llama")
    model.generation_config.eos_token_id = -1
    llm, last = LLM(model), model.config.vocab_size - 1
    [out] = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=3, min_tokens=3, logit_bias={last: 100.0}))
    assert out.token_ids == [last] * 3


def test_no_end_before_min_tokens(llm):
    ids = llm.tokenizer("abc")["input_ids"]
    [out] = llm.generate([ids], SamplingParams(max_tokens=8, ignore_eos=True))
    ends = SamplingParams(max_tokens=8, stop_token_ids=[out.token_ids[0]])
    assert len(llm.generate([ids], ends)[0].token_ids) == 1
    waits = SamplingParams(max_tokens=8, stop_token_ids=[out.token_ids[0]], min_tokens=3)
    [later] = llm.generate([ids], waits)
    assert len(later.token_ids) > 3
    assert out.token_ids[0] not in later.token_ids[:3]


def test_a_stop_string_before_min_tokens_does_not_end(llm):
    printable = {token: -100.0 for token in range(259) if not 3 + 33 <= token < 3 + 120}
    plain = SamplingParams(max_tokens=12, logit_bias=printable, ignore_eos=True, temperature=1.0, seed=1)
    [out] = llm.generate("abc", plain)
    stop = out.text[2]
    for least in (0, 3, 7):
        given = {**plain.__dict__, "stop": [stop, "never so long a string"], "min_tokens": least}
        [ended] = llm.generate("abc", SamplingParams(**given))
        at = out.text.find(stop, max(0, least - 1))
        assert ended.text == (out.text if at < 0 else out.text[:at])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty=2.1 must be at least -2 and at most 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty=nan"),
        ({"logit_bias": {1: 101.0}}, "logit_bias"),
        ({"logit_bias": {"1": 1.0}}, "a mapping of whole numbers to numbers"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens=9 must be at most max_tokens=8"),
        ({"json_schema": "{"}, "json_schema='{' must be a JSON object"),
        ({"json_schema": "[]"}, "json_schema"),
        ({"json_schema": "{}", "ignore_eos": True}, "json_schema says where the text ends"),
        ({"json_schema": "{}", "min_tokens": 2}, "json_schema says where the text ends"),
        ({"json_schema": "{}", "stop_token_ids": [5]}, "json_schema says where the text ends"),
        ({"prompt_logprobs": -1}, "prompt_logprobs=-1"),
    ],
)
def test_out_of_range(given, says):
    with pytest.raises(InputError, match=says):
        SamplingParams(**given)


@pytest.mark.parametrize("given", [{"logit_bias": {259: 1.0}}, {"stop_token_ids": [3, 259], "min_tokens": 2}])
def test_tokens_have_to_exist(llm, given):
    with pytest.raises(InputError, match=f"{next(iter(given))}: token 259 is unknown; ids are 0 to 258"):
        llm.check("abc", SamplingParams(**given))


def test_an_end_token_beyond_the_vocabulary_ends_nothing(llm, monkeypatch):
    monkeypatch.setattr(type(llm), "end_tokens", lambda self: frozenset({300}))
    [out] = llm.generate("abc", SamplingParams(max_tokens=3, min_tokens=2))
    assert len(out.token_ids) == 3


def test_probabilities_of_the_prompt_are_those_of_its_logits(llm, text):
    ids = [each % 259 for each in text] * 3  # longer than a block of rows, and than a chunk
    expected = llm.logits(ids).log_softmax(-1)
    [out] = llm.generate([ids], SamplingParams(max_tokens=1, prompt_logprobs=2, ignore_eos=True))
    assert len(out.prompt_logprobs) == len(ids)
    assert out.prompt_logprobs[0] is None
    for row, token, found in zip(expected, ids[1:], out.prompt_logprobs[1:], strict=False):
        top = row.topk(2)
        wanted = {**dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)), token: float(row[token])}
        assert found == pytest.approx(wanted, abs=1e-4)
    [none] = llm.generate([ids], SamplingParams(max_tokens=1))
    assert none.prompt_logprobs is None


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        ("lazyllm(layers=[1], keep=0.5)", "lazyllm"),
        ("random_drop", "random_drop"),
        ("random_drop + lazyllm(layers=[1], keep=0.5)", "random_drop"),
    ],
)
def test_probabilities_of_the_prompt_need_all_its_rows(plan, name):
    llm = LLM(small_model("llama"))
    said = f"prompt_logprobs needs every token of the prompt in all layers, and {name} leaves some out"
    with pytest.raises(PlanError, match=said):
        llm.check([[1, 2, 3]], SamplingParams(prompt_logprobs=1), plan=plan)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Grace"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class TestSchemas:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_the_text_is_json_by_the_schema(self, llm, temperature):
        params = SamplingParams(max_tokens=300, json_schema=json.dumps(SCHEMA), temperature=temperature, seed=3)
        for out in llm.generate(["who?", "and then?"], params):
            found = json.loads(out.text)
            assert out.finish_reason == "stop"
            assert set(found) == {"name", "age"}
            assert found["name"] in ("Ada", "Grace")
            assert 0 <= found["age"] <= 99

    def test_samples_have_texts_of_their_own(self, llm):
        schema = json.dumps({"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3})
        outs = llm.generate("x", SamplingParams(max_tokens=99, json_schema=schema, n=6, temperature=1.0, seed=0))
        found = [json.loads(out.text) for out in outs]
        assert all(len(each) == 3 for each in found)
        assert len({tuple(each) for each in found}) > 1

    def test_a_text_cut_short_says_so(self, llm):
        [out] = llm.generate("x", SamplingParams(max_tokens=4, json_schema=json.dumps(SCHEMA)))
        assert out.finish_reason == "length"
        assert out.text.startswith("{")

    def test_spaces_do_not_go_on_for_ever(self, llm):
        spaces = {llm.tokenizer(each)["input_ids"][0]: 100.0 for each in " \n\t"}
        [out] = llm.generate("x", SamplingParams(max_tokens=400, json_schema=json.dumps(SCHEMA), logit_bias=spaces))
        assert out.finish_reason == "stop"
        assert set(json.loads(out.text)) == {"name", "age"}

    @pytest.mark.parametrize("schema", ['{"type": "nosuch"}', '{"$ref": "http://x/y"}', '{"properties": 5}'])
    def test_a_schema_that_is_none(self, llm, schema):
        with pytest.raises(InputError, match=r"^json_schema: "):
            llm.check("x", SamplingParams(json_schema=schema))

    def test_what_would_end_the_process_or_never_end_is_refused(self, llm):
        """A chain of references goes onto the C stack, and patterns that all have to hold double the work."""
        chain = {f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in range(600)} | {"a600": {"type": "object"}}
        patterns = [{"pattern": f"a{at}"} for at in range(30)]
        halves = {"a": {"allOf": patterns[:5]}, "b": {"allOf": patterns[5:10]}}
        for schema, why in (
            ({"$defs": chain, "$ref": "#/$defs/a0"}, "601 references are more than 512"),
            ({"type": "string", "allOf": patterns}, "30 patterns in one allOf are more than 8"),
            ({"$defs": halves, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "10 patterns in one allOf"),
            ({"anyOf": patterns, "allOf": [{"$ref": f"#/anyOf/{at}"} for at in range(9)]}, "9 patterns in one allOf"),
            (
                {"$defs": {"a": {"enum": [{}] * 1000}}, "anyOf": [{"allOf": [{"$ref": "#/$defs/a"}]}] * 101},
                "hold more than 100000 schemas",
            ),
            ({"type": "integer", "multipleOf": 9_999_991}, "more than 100000 states"),
            ({"items": {"anyOf": [{"multipleOf": 12.34567891}]}}, "more than 100000 states"),
            ({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 997}]}, "more than 100000 states"),
            ({"multipleOf": 9973, "anyOf": [{"type": "integer"}, {"multipleOf": 997}]}, "more than 100000 states"),
            ({"$defs": {"a": {"multipleOf": 9973}}, "multipleOf": 997, "$ref": "#/$defs/a"}, "than 100000 states"),
        ):
            with pytest.raises(InputError, match=why):
                llm.check("x", SamplingParams(json_schema=json.dumps(schema)))
        itself = {"$defs": {"a": {"type": "array", "items": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "$ref": "#/$defs/a"}
        each = {"type": "object", "properties": {f"p{at}": {"type": "string", "pattern": "a"} for at in range(20)}}
        numbers = {f"p{at}": {"type": "number", "multipleOf": at} for at in (0.01, 0.5, 7, 60, 365, 997, 1_000_000)}
        for schema in (itself, each, {"type": "object", "properties": numbers}):
            llm.check("x", SamplingParams(json_schema=json.dumps(schema)))

    def test_without_llguidance(self, llm, monkeypatch):
        monkeypatch.setitem(sys.modules, "llguidance", None)
        with pytest.raises(MissingExtraError, match="needs llguidance; install winnow with its extra 'serve'"):
            llm.check("x", SamplingParams(json_schema="{}"))

    def test_a_model_without_a_tokenizer(self):
        with pytest.raises(InputError, match="fast tokenizer"):
            LLM(small_model("llama")).check([[1]], SamplingParams(json_schema="{}"))
