"""SPEED against the stock layers, its invariants (K1 to K9, K11) and its closed formulas."""

from dataclasses import dataclass

import pytest
import torch

from covering import covered
from driving import decode, prefill
from models import CONFIGS, small_model
from winnow import LLM, Plan, SamplingParams
from winnow.engine.services import admit
from winnow.errors import InputError, PlanError
from winnow.policies.compute.speed import Speed
from winnow.policies.prompt.random_drop import RandomDrop
from winnow.runtime.sequence import new_sequence

LAYERS, PROMPT = 4, 31
FAMILIES = tuple(CONFIGS)
POLICIES = [
    Speed(cutoff=2),
    Speed(cutoff=1, anchors="none", decode_from="last:4"),
    Speed(cutoff=3, anchors="first:4+last:5", decode_from="last:2"),
    Speed(cutoff=0.75, anchors="random:6", decode_from="last:5"),
    Speed(cutoff=2, self_only=True, decode_from="last:3"),
    Speed(cutoff=2, anchors="none", self_only=True, decode_from="last:3"),
]


@pytest.fixture
def llm():
    return LLM(small_model("llama"), prefill_chunk=7)


def upper_positions(llm, policy, prompt):
    """The prompt positions that go through all layers."""
    return policy.full_depth(prompt, Blind()).positions


class Blind:
    """What a policy asks, where there is no tokenizer."""

    template = None


def start(llm, policy, ids, prompt=PROMPT):
    state, seen = admit(llm.decoder, None, Plan(compute=policy), ids[:prompt], len(ids) - prompt, llm.prefill_chunk)
    return state, prefill(llm.decoder, state, seen, llm.prefill_chunk)


def stock_layer(model, index, hidden, positions, visible):
    """A stock layer over rows at `positions`; visible: [rows, rows] bool, without the layer's own window."""
    window = windows(model)[index]
    if window is not None:
        visible = visible & (positions[:, None] - positions[None] < window)
    mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None, None]
    kinds = getattr(model.config, "layer_types", None)
    per_type = "rope_type" not in model.config.rope_parameters
    arguments = (kinds[index],) if per_type else ()
    rotary = model.model.rotary_emb(hidden, positions[None], *arguments)
    return model.model.layers[index](hidden, attention_mask=mask, position_embeddings=rotary)


def windows(model):
    return LLM(model).decoder.shape.windows


@torch.inference_mode()
def packed(model, ids, policy, cutoff, deep, prompt):
    """The teacher-forced definition: all rows below the cutoff; above, rows of `deep` and of what follows the prompt.

    Returns logits after the prompt and after each token that follows, and the hidden states that enter each layer.
    """
    positions = torch.arange(len(ids))
    hidden = embedded(model, ids)
    start, entering = deep_start(deep, prompt), []
    for index in range(model.config.num_hidden_layers):
        entering.append(hidden[0])
        if index == cutoff:
            going = torch.tensor([i in deep or i >= prompt for i in range(len(ids))])
            hidden, positions = hidden[:, going], positions[going]
        visible = positions[None] <= positions[:, None]
        if policy.self_only and index >= cutoff:
            visible &= (positions[None] == positions[:, None]) | (positions[None] < start)
        hidden = stock_layer(model, index, hidden, positions, visible)
    return logits_of(model, hidden)[-(len(ids) - prompt + 1) :], entering


def deep_start(deep, prompt):
    """Where the decode phase begins: the run of positions that ends with the prompt."""
    start = prompt - 1
    while start - 1 in deep:
        start -= 1
    return start


@torch.inference_mode()
def dense(model, ids, cutoff, deep, prompt):
    """The same as a mask: every row goes through every layer, and above the cutoff only some see each other (K4)."""
    positions, hidden = torch.arange(len(ids)), embedded(model, ids)
    going = torch.tensor([i in deep or i >= prompt for i in range(len(ids))])
    for index in range(model.config.num_hidden_layers):
        visible = positions[None] <= positions[:, None]
        if index >= cutoff:
            visible &= (going[:, None] & going[None]) | torch.eye(len(ids), dtype=torch.bool)
        hidden = stock_layer(model, index, hidden, positions, visible)
    return logits_of(model, hidden)[prompt - 1 :]


def embedded(model, ids):
    return model.model.embed_tokens(torch.tensor([ids])) * getattr(model.config, "embedding_multiplier", 1.0)


def logits_of(model, hidden):
    logits = model.lm_head(model.model.norm(hidden))[0] / getattr(model.config, "logits_scaling", 1.0)
    if (cap := getattr(model.config, "final_logit_softcapping", None)) is not None:
        logits = (logits / cap).tanh() * cap
    return logits * getattr(model.config, "logit_scale", 1.0)


@covered(policy=POLICIES, chunk=[1, 7, 64])
def test_equals_the_stock_layers_on_packed_rows(llm, text, policy, chunk):
    """K7: each decode step equals the teacher-forced forward; K3: what enters the lower layers is full attention's."""
    llm.prefill_chunk = chunk
    deep = upper_positions(llm, policy, text[:PROMPT])
    expected, _ = packed(llm.model, text, policy, policy.cut(llm.decoder.shape), deep, PROMPT)
    got = llm.logits(text, decode_from=PROMPT, plan=Plan(compute=policy))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@covered(policy=POLICIES, seed=range(3))
def test_of_a_shortened_prompt_those_go_on_that_are_left(llm, text, policy, seed):
    """Anchors and the decode phase are found in the prompt as given; positions are those of what is left."""
    drop = RandomDrop(keep=0.5, seed=seed)
    left = drop.shorten(text[:PROMPT], Blind())
    deep = [left.index(at) for at in upper_positions(llm, policy, text[:PROMPT]) if at in left]
    ids = [text[at] for at in left] + text[PROMPT:]
    expected, _ = packed(llm.model, ids, policy, policy.cut(llm.decoder.shape), deep, len(left))
    got = llm.logits(text, decode_from=PROMPT, plan=Plan(prompt=drop, compute=policy))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@covered(name=FAMILIES, policy=POLICIES[:4])
def test_equals_the_dense_mask(name, text, policy):
    """K4, with windows, caps, sinks and unrotated layers."""
    llm = LLM(small_model(name), prefill_chunk=9)
    deep = upper_positions(llm, policy, text[:PROMPT])
    expected = dense(llm.model, text, policy.cut(llm.decoder.shape), deep, PROMPT)
    got = llm.logits(text, decode_from=PROMPT, plan=Plan(compute=policy))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@covered(name=FAMILIES, policy=POLICIES[4:], chunk=[1, 9])
def test_self_only_in_every_family(name, text, policy, chunk):
    """Windows apply to the anchor too."""
    llm = LLM(small_model(name), prefill_chunk=chunk)
    deep = upper_positions(llm, policy, text[:PROMPT])
    expected, _ = packed(llm.model, text, policy, 2, deep, PROMPT)
    got = llm.logits(text, decode_from=PROMPT, plan=Plan(compute=policy))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", [Speed(cutoff=LAYERS), Speed(cutoff=1.0)])
def test_all_layers_are_full_attention(llm, text, policy):
    """K1, caches included."""
    state, logits = start(llm, policy, text)
    whole, expected = start(llm, Speed(cutoff=1, anchors="all"), text)
    torch.testing.assert_close(logits, llm.logits(text)[PROMPT - 1], rtol=0, atol=1e-5)
    torch.testing.assert_close(expected, logits, rtol=0, atol=1e-5)
    for cache, other in zip(state.caches, whole.caches, strict=True):
        for mine, its in zip(cache.live(), other.live(), strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cutoff", [1, 2, 3])
def test_all_anchors_are_full_attention(llm, text, cutoff):
    """K2."""
    got = llm.logits(text, decode_from=PROMPT, plan=f"speed(cutoff={cutoff}, anchors='all')")
    torch.testing.assert_close(got, llm.logits(text)[PROMPT - 1 :], rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_what_the_caches_hold(llm, text, policy):
    """K3: lower layers hold full attention's units. K5, K8: upper ones those of the anchors and the decode phase."""
    state, _ = start(llm, policy, text)
    full, _ = start(llm, Speed(cutoff=LAYERS), text)
    for token in text[PROMPT:]:
        decode(llm.decoder, [(state, token)])
        decode(llm.decoder, [(full, token)])
    deep, cutoff = upper_positions(llm, policy, text[:PROMPT]), policy.cut(llm.decoder.shape)
    new = list(range(PROMPT, len(text)))
    begin = deep_start(deep, PROMPT)
    upper = [p for p in deep if p < begin] if policy.self_only else [*deep, *new]
    for layer, (cache, whole) in enumerate(zip(state.caches, full.caches, strict=True)):
        if layer < cutoff:
            for mine, its in zip(cache.live(), whole.live(), strict=True):
                torch.testing.assert_close(mine, its, rtol=0, atol=1e-5)
        else:
            assert cache.live_positions().tolist() == upper


@covered(prompt=[1, 2, 3, 20, 31], policy=POLICIES[:2])
def test_rows_units_and_bytes_in_closed_form(llm, text, prompt, policy):
    new, kv_heads = 6, 2
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    [out] = llm.generate([text[:prompt]], params, plan=Plan(compute=policy))
    header = min(4, prompt) if policy.decode_from == "last:4" else 1
    anchors = int(policy.anchors == "bos" and prompt > header)
    cutoff, stats, shape = policy.cutoff, out.stats, llm.decoder.shape
    others = prompt - anchors - header  # N of the paper
    planted = anchors * (LAYERS - cutoff)  # the first token's rows above, computed once per model
    steps = new - 1
    assert stats.rows_computed == cutoff * others + LAYERS * (anchors + header + steps) - planted
    assert stats.rows_full == LAYERS * (prompt + steps)
    deep = policy.full_depth(text[:prompt], Blind())
    assert sum(policy.layer_tokens(shape, prompt, deep).rows) == stats.rows_computed - LAYERS * steps
    reads = [
        cutoff * (others + anchors + header + t) + (LAYERS - cutoff) * (anchors + header + t)
        for t in range(1, steps + 1)
    ]
    assert stats.units_read == kv_heads * sum(reads)
    token_bytes = kv_heads * shape.unit_bytes
    assert stats.cache_bytes == token_bytes * (cutoff * others + LAYERS * (anchors + header + steps))


@torch.inference_mode()
def test_self_only_reads_the_anchors_and_itself(llm, text):
    """K9: with no anchor the attention above has one key, so its output is the value path alone."""
    [out] = llm.generate(
        [text[:PROMPT]],
        SamplingParams(max_tokens=5, ignore_eos=True),
        plan="speed(cutoff=3, anchors='none', self_only=True)",
    )
    assert out.stats.units_read == 2 * sum(3 * (PROMPT + t) + 1 for t in range(1, 5))
    recorded = {}
    attention = llm.decoder.tree.model.layers[3].self_attn
    hook = attention.register_forward_hook(
        lambda module, given, keywords, out: recorded.update(x=keywords["hidden_states"], out=out[0]), with_kwargs=True
    )
    llm.logits(text, decode_from=PROMPT, plan="speed(cutoff=3, anchors='none', self_only=True)")
    hook.remove()
    values = attention.v_proj(recorded["x"]).unflatten(-1, (2, 1, -1)).expand(-1, -1, -1, 2, -1)
    torch.testing.assert_close(recorded["out"], attention.o_proj(values.flatten(2)), rtol=0, atol=1e-5)


def test_the_first_token_is_computed_once(llm, text):
    """K6: bitwise the same units whatever follows it, and the same as if it had gone through in this prompt."""
    others = [text[0], *reversed(text[1:])]
    policy = Speed(cutoff=2)
    first, second = start(llm, policy, text)[0], start(llm, policy, others, prompt=20)[0]
    for layer in range(2, LAYERS):
        for mine, its in zip(first.caches[layer].live()[:2], second.caches[layer].live()[:2], strict=True):
            assert torch.equal(mine[:, 0], its[:, 0])
    alone, logits = in_its_prompt(llm, policy, text)
    other, _ = in_its_prompt(llm, policy, others)
    for layer in range(2, LAYERS):
        for mine, its in zip(alone.caches[layer].live()[:2], other.caches[layer].live()[:2], strict=True):
            assert torch.equal(mine[:, 0], its[:, 0])
    torch.testing.assert_close(logits, start(llm, policy, text)[1], rtol=0, atol=1e-5)
    assert alone.stats.rows_computed == first.stats.rows_computed + 2
    for layer in range(2, LAYERS):
        torch.testing.assert_close(alone.caches[layer].live()[0], first.caches[layer].live()[0], rtol=0, atol=1e-5)


def in_its_prompt(llm, policy, ids):
    """A sequence whose first token goes through all layers as any other anchor does."""
    state = new_sequence(
        llm.decoder, Plan(compute=policy), PROMPT, len(ids), 7, deep=policy.full_depth(ids[:PROMPT], Blind())
    )
    return state, prefill(llm.decoder, state, ids[:PROMPT], 7)


@pytest.mark.parametrize("behind_the_count", [False, True])
def test_the_first_token_is_computed_again_when_weights_change(llm, text, behind_the_count):
    """Also by a write to `.data`, as adapters are merged, which torch does not count."""
    before = start(llm, Speed(cutoff=2), text)[0]
    weight = llm.model.model.layers[2].self_attn.v_proj.weight
    with torch.no_grad():
        (weight.data if behind_the_count else weight).mul_(2)
    after = start(llm, Speed(cutoff=2), text)[0]
    torch.testing.assert_close(after.caches[2].live()[1][:, 0], 2 * before.caches[2].live()[1][:, 0])


def test_without_lower_layers_the_prompt_does_not_matter(llm, text):
    """K11: a cutoff of 0, which users cannot ask for, leaves the first token, the header and the positions."""

    @dataclass(frozen=True)
    class Nothing(Speed):
        def check(self):
            pass

    plan = Plan(compute=Nothing(cutoff=0, decode_from="last:3"))
    other = [text[0], *reversed(text[1 : PROMPT - 3]), *text[PROMPT - 3 :]]
    got = llm.logits(text, decode_from=PROMPT, plan=plan)
    assert torch.equal(got, llm.logits(other, decode_from=PROMPT, plan=plan))
    other[PROMPT - 3] += 1
    assert not torch.equal(got, llm.logits(other, decode_from=PROMPT, plan=plan))


@pytest.mark.parametrize("anchors", ["none", "bos"])
@pytest.mark.parametrize("prompt", [1, 2, 5])
@pytest.mark.parametrize("self_only", [False, True])
@pytest.mark.parametrize("lacking", [0, 3])
def test_a_prompt_that_is_all_decode_phase(llm, text, anchors, prompt, self_only, lacking):
    """Then nothing is an anchor, not even the first token."""
    policy = Speed(cutoff=2, anchors=anchors, decode_from=f"last:{prompt + lacking}", self_only=self_only)
    assert policy.full_depth(text[:prompt], Blind()).anchors == ()
    expected, _ = packed(llm.model, text[:12], policy, 2, tuple(range(prompt)), prompt)
    got = llm.logits(text[:12], decode_from=prompt, plan=Plan(compute=policy))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_a_ragged_batch_equals_each_alone(llm, text):
    texts = [text, text[::-1], text[5:] + text[:5]]
    states = [start(llm, policy, ids)[0] for policy, ids in zip(POLICIES[:3], texts, strict=True)]
    steps = [
        decode(llm.decoder, [(s, ids[i]) for s, ids in zip(states, texts, strict=True)]) for i in range(PROMPT, 48)
    ]
    for index, (policy, ids) in enumerate(zip(POLICIES, texts, strict=False)):
        expected = llm.logits(ids, decode_from=PROMPT, plan=Plan(compute=policy))[1:]
        torch.testing.assert_close(torch.stack(steps)[:, index], expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def needle():
    return LLM("needle")


class TestConversations:
    """The decode phase begins with the last assistant header; what was said before it is prompt."""

    def held(self, llm, ids):
        plan = Plan.parse("speed(cutoff=6)")
        state, seen = admit(llm.decoder, llm.tokenizer, plan, list(ids), 1, 512)
        prefill(llm.decoder, state, seen, 512)
        return state.caches[6].live_positions().tolist()

    def test_earlier_answers_are_prompt(self, needle):
        messages = [
            {"role": "user", "content": "The code of Anna is 17."},
            {"role": "assistant", "content": "I see."},
            {"role": "user", "content": "What is the code of Anna?"},
        ]
        ids = needle.render(messages)
        assert self.held(needle, ids) == [0, len(ids) - 1]  # its header is one token

    def test_the_start_of_an_answer_is_decoded(self, needle):
        ids = needle.render([{"role": "user", "content": "What is the code of Anna?"}])
        more = ids + needle.tokenizer(" The code", add_special_tokens=False)["input_ids"]
        assert self.held(needle, more) == [0, *range(len(ids) - 1, len(more))]

    def test_a_prompt_without_a_header_decodes_from_its_last_token(self, needle):
        ids = needle.tokenizer("Once upon a time")["input_ids"]
        assert self.held(needle, ids) == [0, len(ids) - 1]

    def test_the_system_turn_as_anchor(self, needle):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        ids = needle.render(messages)
        plan = Plan.parse("speed(cutoff=6, anchors='system')")
        state, seen = admit(needle.decoder, needle.tokenizer, plan, ids, 1, 512)
        prefill(needle.decoder, state, seen, 512)
        user = ids.index(needle.tokenizer.convert_tokens_to_ids("<|user|>"))
        assert state.caches[6].live_positions().tolist() == [*range(user), len(ids) - 1]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("speed(cutoff=0)", "at least one layer"),
        ("speed(cutoff=0.0)", "above 0.0"),
        ("speed(cutoff=1.5)", "up to 1.0"),
        ("speed(cutoff=5)", "above the model's 4 layers; use 1 to 4"),
        ("speed(anchors='eos')", "none of none, bos, system"),
        ("speed(anchors='first:0')", "none of none"),
        ("speed(decode_from='last:0')", "must be 'header' or like 'last:1'"),
        ("speed(decode_from='answer')", "must be 'header'"),
        ("speed(self_only=True, anchors='first:4')", "self_only is for"),
        ("speed(cutoff=0.99) + streaming(recent=4) + lazyllm", "both say what to compute"),
        ("pop(cutoff=0)", "at least one layer"),
        ("pop(cutoff=5)", "above the model's 4"),
        ("swiftkv(share=0)", "at least 1"),
    ],
)
def test_bad_parameters(llm, text, plan, says):
    with pytest.raises(PlanError, match=says):
        llm.generate([text], plan=plan)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("speed(anchors='first:31')", "31 tokens, and the prompt has 30 before"),
        ("speed(anchors='bos+last:40')", "'last:40' asks for 40 tokens"),
        ("speed(anchors='system')", "chat template"),
    ],
)
def test_a_prompt_that_lacks_what_the_plan_names(llm, text, plan, says):
    with pytest.raises(InputError, match=says):
        llm.generate([text[:PROMPT]], plan=plan)
