"""Layer-wise diagnostics: every figure is the stock model's own, whatever the chunk; memory stays small; the cutoff."""

import math
from dataclasses import replace

import pytest
import torch

from digits import Digits
from models import small_model
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.diagnosis.cutoff import Thresholds, recommend
from winnow.diagnosis.diagnose import diagnose_prompts, diagnose_tasks, summarise
from winnow.diagnosis.layerwise import LayerObserver, Path
from winnow.errors import CapacityError, InputError
from winnow.policies.compute.turns import decode_start

NEW = 7
GREEDY = SamplingParams(max_tokens=NEW, ignore_eos=True)


def stock(model, ids, prompt, start, heads, windows):
    """The figures from the stock model's attention maps and hidden states over the whole text, one row at a time."""
    caught = {}
    hook = model.model.norm.register_forward_pre_hook(lambda module, args: caught.update(last=args[0]))
    with torch.inference_mode():
        out = model(torch.tensor([ids]), output_attentions=True, output_hidden_states=True, use_cache=False)
    hook.remove()
    layers = []
    for attention, window in zip(out.attentions, windows, strict=True):
        rows = []
        for query in range(prompt, len(ids)):
            for head in range(heads):
                p = attention[0, head, query].double().tolist()
                inside = [j for j in range(1, start) if window is None or query - j < window]
                on_prompt = sum(p[j] for j in inside)
                masses = [on_prompt, p[0], sum(p[start:query]), p[query]]
                entropy = evenness = None
                if on_prompt >= 1e-6 and len(inside) > 1:
                    shares = [p[j] / on_prompt for j in inside]
                    entropy = -sum(share * math.log(share) for share in shares if share)
                    evenness = entropy / math.log(len(inside))
                rows.append((masses, entropy, evenness))
        counted = [row for row in rows if row[1] is not None]
        layers.append(
            {
                "masses": [sum(row[0][i] for row in rows) / len(rows) for i in range(4)],
                "entropy": sum(row[1] for row in counted) / len(counted) if counted else None,
                "evenness": sum(row[2] for row in counted) / len(counted) if counted else None,
                "selective": sum(row[0][0] * (1 - row[2]) for row in counted) / len(rows),
                "skipped": 1 - len(counted) / len(rows),
            }
        )
    states = [state[0].double() for state in (*out.hidden_states[:-1], caught["last"])]
    return layers, [(bend(state[1:start]), bend(state[start:])) for state in states]


def bend(points):
    """Mean angle between the moves from point to point, in degrees; None where there is none."""
    angles = []
    for a, b, c in zip(points, points[1:], points[2:], strict=False):
        before, after = b - a, c - b
        if not before.any() or not after.any():  # a token twice in a row has the same embedding
            continue
        cosine = float(before @ after / (before.norm() * after.norm()))
        angles.append(math.degrees(math.acos(max(-1.0, min(1.0, cosine)))))
    return sum(angles) / len(angles) if angles else None


def check(found, layers, curvatures):
    def close(value, expected, within=1e-4):
        return value is expected is None or value == pytest.approx(expected, abs=within)

    for figures, expected in zip(found.layers, layers, strict=True):
        masses = [figures.prompt, figures.bos, figures.decode, figures.itself]
        assert masses == pytest.approx(expected["masses"], abs=1e-4)
        assert figures.sinks == pytest.approx(1 - sum(expected["masses"]), abs=1e-4)
        for name in ("entropy", "evenness", "selective", "skipped"):
            assert close(getattr(figures, name), expected[name]), name
    for point, pair in zip(found.trajectory, curvatures, strict=True):
        for phase, degrees, first in zip(("prompt", "decode"), pair, curvatures[0], strict=True):
            assert close(getattr(point, phase), degrees, 1e-3)
            straighter = None if None in (first, degrees) else first - degrees
            assert close(getattr(point, f"{phase}_straightening"), straighter, 1e-3)


# With windows, soft caps and learned sinks; the first answers with different tokens, so its embeddings have angles too.
FAMILIES = ["qwen3", "mistral", "gemma2", "gemma3", "olmo2", "gpt_oss"]


def diagnosed(llm, ids, params=GREEDY):
    return summarise(list(diagnose_prompts(llm, [ids], params)))


@pytest.mark.parametrize("family", FAMILIES)
def test_figures_are_the_stock_models(family, text):
    llm = LLM(small_model(family), prefill_chunk=7)
    [done] = llm.generate([text], GREEDY)
    shape, whole = llm.decoder.shape, [*text, *done.token_ids[:-1]]
    expected = stock(small_model(family), whole, len(text), len(text) - 1, shape.q_heads, shape.windows)
    found = diagnosed(llm, text)
    check(found, *expected)
    assert (found.prompts, found.steps) == (1, NEW - 1)
    if family == "gpt_oss":
        assert min(each.sinks for each in found.layers) > 0.01
    else:
        sums = [each.prompt + each.bos + each.decode + each.itself for each in found.layers]
        assert sums == pytest.approx([1.0] * len(sums), abs=1e-5)


def test_a_window_holds_fewer_prompt_tokens_with_every_step(text):
    found = diagnosed(LLM(small_model("mistral")), text, SamplingParams(max_tokens=12, ignore_eos=True))
    # Of 11 steps after the last prompt token, the window of 8 holds two prompt tokens or more in the first 5.
    assert found.layers[0].skipped == pytest.approx(6 / 11)
    assert found.layers[0].bos == 0.0


@pytest.mark.parametrize("chunk", [1, 2, 13, 45, 46, 47, 100])
def test_the_chunk_changes_nothing(chunk, text):
    whole, pieces = (diagnosed(LLM(small_model("gemma2"), prefill_chunk=size), text) for size in (48, chunk))
    for one, other in ((whole.layers, pieces.layers), (whole.trajectory, pieces.trajectory)):
        for expected, found in zip(one, other, strict=True):
            assert vars(found) == pytest.approx(vars(expected), abs=1e-4)


def test_the_header_of_the_answer_is_decode_phase():
    llm = LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16)
    ids = llm.render([{"role": "user", "content": "The ferry leaves at nine."}])
    start = decode_start(ids, llm.tokenizer)
    assert llm.tokenizer.decode(ids[start:]) == "<assistant>"
    [done] = llm.generate([ids], GREEDY)
    model = tiny_model()
    model.set_attn_implementation("eager")
    found = diagnosed(llm, ids)
    check(found, *stock(model, [*ids, *done.token_ids[:-1]], len(ids), start, 4, [None, None]))


def test_prompts_are_pooled_by_row(text):
    llm = LLM(small_model())
    short, long = ([text[:20]], SamplingParams(max_tokens=4, ignore_eos=True)), ([text], GREEDY)
    sums = [each for prompts, params in (short, long) for each in diagnose_prompts(llm, prompts, params)]
    one, other = (summarise([each]) for each in sums)
    both = summarise(sums)
    assert (both.prompts, both.steps) == (2, 3 + 6)
    for layer in range(4):
        for name in ("prompt", "selective", "entropy"):
            values = [getattr(each.layers[layer], name) for each in (one, other, both)]
            assert values[2] == pytest.approx((3 * values[0] + 6 * values[1]) / 9)


def test_what_is_held_does_not_grow_with_the_text(text, monkeypatch):
    held = []

    def tensors(thing):
        if isinstance(thing, torch.Tensor):
            return thing.numel()
        if isinstance(thing, dict):
            return sum(map(tensors, thing.values()))
        if isinstance(thing, (list, tuple)):
            return sum(map(tensors, thing))
        return tensors(vars(thing)) if hasattr(thing, "__dict__") else 0

    ordinary = LayerObserver.attended

    def watched(self, attended):
        ordinary(self, attended)
        held.append(tensors(self))

    monkeypatch.setattr(LayerObserver, "attended", watched)
    llm = LLM(small_model(), prefill_chunk=16)
    most = []
    for ids in (text, text * 5):
        held.clear()
        diagnosed(llm, ids)
        most.append(max(held))
    layers, hidden = 4, 64
    states = 2 * 2 * (layers + 1) * hidden  # two phases, two states
    sums = layers * (4 + 4) + 2 * 2 * (layers + 1)
    assert most == [states + sums] * 2


def test_angles_of_a_path():
    path = Path()
    assert path.extend(torch.tensor([[0.0, 0.0], [1.0, 0.0]])) == (0.0, 0)
    turned, count = path.extend(torch.tensor([[1.0, 1.0], [1.0, 2.0]]))  # a right angle, then straight on
    assert (turned, count) == (pytest.approx(90), 2)
    assert path.extend(torch.tensor([[1.0, 2.0]])) == (0.0, 0)  # no move, no angle
    assert path.extend(torch.tensor([[1.0, 1.0]])) == (0.0, 0)  # the move before was none
    assert path.extend(torch.tensor([[1.0, 2.0]])) == (pytest.approx(180), 1)  # and back


FLAT = {"prompt": [100.0] * 4, "decode": [90.0] * 4}


def test_the_cutoff_is_the_smallest_that_every_rule_allows():
    found = recommend([0.5, 0.9, 0.4, 0.4], [0.12, 0.7, 0.09, 0.09], FLAT)
    tail = found.rules[0]
    assert (found.layer, tail.name, tail.smallest) == (2, "tail share", 2)
    assert tail.values == pytest.approx((1.0, 0.88, 0.18, 0.09, 0.0))
    assert found.rules[1].name == "layer mass"
    assert found.rules[1].smallest == 2
    assert found.mass_above == pytest.approx(0.8 / 2.2)


@pytest.mark.parametrize(
    ("selective", "curvature", "layer", "decided"),
    [
        ([0.7, 0.01, 0.01, 0.01], FLAT, 1, "tail share"),
        ([0.9, 0.01, 0.26, 0.01], FLAT, 3, "tail share"),
        ([2.0, 0.01, 0.26, 0.01], FLAT, 3, "layer mass"),
        ([0.7, 0.01, 0.01, 0.01], FLAT | {"prompt": [120.0, 110.0, 100.0, 100.0]}, 2, "prompt curvature"),
        ([0.7, 0.01, 0.01, 0.01], FLAT | {"decode": [None, 90.0, 96.0, 99.0]}, 2, "decode curvature"),
        ([0.1, 0.1, 0.1, 0.1], FLAT, 4, "tail share"),  # all alike: nothing below the last layer's end
        ([0.0, 0.0, 0.0, 0.0], FLAT, 1, "tail share"),  # nothing is read at all
        ([0.7, 0.01, 0.01, 0.9], FLAT, 4, "tail share"),  # the last layer reads: no cutoff
    ],
)
def test_each_rule_can_decide(selective, curvature, layer, decided):
    found = recommend(selective, selective, curvature)
    assert (found.layer, found.rules[0].name) == (layer, decided)
    assert found.rules[0].smallest == layer
    assert list(found.rules) == sorted(found.rules, key=lambda rule: -rule.smallest)
    assert all(list(rule.values) == sorted(rule.values, reverse=True) for rule in found.rules)


def test_thresholds_move_the_cutoff():
    mass = [0.12, 0.7, 0.09, 0.09]
    assert recommend(mass, mass, FLAT).layer == 2
    assert recommend(mass, mass, FLAT, Thresholds(tail_share=0.15)).layer == 3
    assert recommend(mass, mass, FLAT, Thresholds(tail_share=1.0, layer_mass=1.0)).layer == 1


@pytest.mark.parametrize(
    ("ids", "params", "words"),
    [
        ([5, 6, 7, 8], GREEDY, "2 tokens between its first one"),
        ([5] * 600, GREEDY, "512 positions"),
        ([5, 97] * 8, GREEDY, "token 1 is 97"),
        ([5] * 20, SamplingParams(max_tokens=1), "max_tokens=1"),
        ([5] * 20, replace(GREEDY, temperature=1.0), "temperature=1"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(ids, params, words, text, monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("work was done before the error")

    monkeypatch.setattr("winnow.runtime.decoder.Decoder.embed", refuse)
    with pytest.raises((InputError, CapacityError), match=words):
        diagnose_prompts(LLM(small_model()), [text, ids], params)


def test_tasks_are_checked_before_any_work_and_answers_without_a_step_are_refused():
    llm = LLM(tiny_model(), tokenizer=byte_tokenizer())
    with pytest.raises(CapacityError):
        diagnose_tasks(llm, [Digits()], 32768, 1)
    # Digits' prompt leaves room for a few tokens; stopped at once, there is no decode step.
    sums = list(diagnose_tasks(llm, [Digits()], 64, 2, max_tokens=2, ignore_eos=True))
    assert summarise(sums).steps == 2
    for each in sums:
        each.steps = 0
    with pytest.raises(InputError, match="2 answers with 0 decode steps"):
        summarise(sums)
