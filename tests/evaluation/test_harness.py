"""lm_eval under plans: the figures of its own model under full attention, and of `llm.logits` under others."""

import math
import re
from functools import partial

import pytest
import torch

from lm_eval_tasks import CHOICES, TEXTS, write_tasks
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.errors import CapacityError, InputError, PlanError

pytest.importorskip("lm_eval", reason="lm_eval is not installed (extra 'eval')")

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from winnow.evaluation import harness_run
from winnow.evaluation.harness import PlannedLM, sampling
from winnow.evaluation.harness_run import load_tasks, run_tasks, scores

STREAMING = "streaming(sink=2, recent=8)"
PLANS = (STREAMING, "lazyllm", "speed(cutoff=1)", "sink_recent(sink=1, recent=4)")


@pytest.fixture(scope="module")
def llm():
    return LLM(tiny_model(), tokenizer=byte_tokenizer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks"))


def stock(llm, positions=None):
    """lm_eval's own model of transformers, over the same weights."""
    return HFLM(pretrained=tiny_model(), tokenizer=llm.tokenizer, batch_size=1, device="cpu", max_length=positions)


def short(positions):
    """The same weights for texts of at most so many tokens."""
    model = tiny_model()
    model.config.max_position_embeddings = positions
    return LLM(model, tokenizer=byte_tokenizer())


def pairs():
    asked = [(doc["question"], " " + choice) for doc in CHOICES for choice in doc["choices"]]
    return [*asked, ("", "The ferry"), ("two  ", "words")]


def requests(kind, arguments):
    return [Instance(kind, {}, each, i, ("task", i, 1)) for i, each in enumerate(arguments)]


def likelihoods(model, arguments):
    return model.loglikelihood(requests("loglikelihood", arguments), disable_tqdm=True)


def test_full_attention_gives_the_likelihoods_of_the_stock_model(llm):
    found, expected = likelihoods(PlannedLM(llm, "full"), pairs()), likelihoods(stock(llm), pairs())
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)


def test_the_greedy_continuation_is_known_as_such(llm):
    def following(ids, count):
        return llm.generate([ids], SamplingParams(max_tokens=count, ignore_eos=True))[0].token_ids

    context = llm.tokenizer("The ferry leaves at")["input_ids"]
    greedy = following(context, 3)
    wrong = (greedy[0] + 1) % 259
    other = [wrong, *following([*context, wrong], 2)]  # greedy but for its first token
    assert [found for _, found in PlannedLM(llm, "full")._judge(context, [greedy, other])] == [True, False]


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_gives_the_likelihoods_of_decode_steps_after_the_prompt(llm, plan):
    found = likelihoods(PlannedLM(llm, plan), pairs()[:9])
    full = likelihoods(PlannedLM(llm, "full"), pairs()[:9])
    for (context, continuation), (value, _) in zip(pairs(), found, strict=False):
        prompt, following = (llm.tokenizer(text)["input_ids"] for text in (context, continuation))
        logits = llm.logits(prompt + following[:-1], decode_from=len(prompt), plan=plan).log_softmax(-1)
        assert value == pytest.approx(float(logits.gather(1, torch.tensor(following)[:, None]).sum()), abs=1e-4)
    assert [value for value, _ in found] != pytest.approx([value for value, _ in full])


def test_a_context_is_prefilled_once_for_all_its_continuations(llm):
    alone, together = PlannedLM(llm, STREAMING), PlannedLM(llm, STREAMING)
    context, continuations = "The ferry leaves at", [" nine", " noon or so", "s"]
    values = [likelihoods(alone, [(context, each)])[0][0] for each in continuations]
    found = likelihoods(together, [(context, each) for each in continuations])
    assert [value for value, _ in found] == pytest.approx(values)
    layers, prompt, fed = 2, len(context), sum(len(each) - 1 for each in continuations)
    assert together.costs.rows_computed == together.costs.rows_full == layers * (prompt + fed)
    assert alone.costs.rows_computed == layers * (3 * prompt + fed)
    assert together.costs.units_read == alone.costs.units_read < together.costs.units_full
    assert together.costs.cache_bytes == alone.costs.cache_bytes > 0
    assert together.costs.requests == 3


def test_whole_texts_have_the_likelihoods_of_the_stock_model(llm):
    texts = [(doc["text"],) for doc in TEXTS]
    for positions in (None, 20):  # at once, and in windows
        ours = PlannedLM(llm if positions is None else short(positions), "full")
        found = ours.loglikelihood_rolling(requests("loglikelihood_rolling", texts))
        expected = stock(llm, positions).loglikelihood_rolling(requests("loglikelihood_rolling", texts), True)
        assert found == pytest.approx(expected, abs=1e-3)
    with pytest.raises(InputError, match="full plan"):
        PlannedLM(llm, STREAMING).loglikelihood_rolling(requests("loglikelihood_rolling", texts))


def test_a_context_too_long_loses_its_beginning_as_with_the_stock_model(llm):
    text, tail = "The ferry leaves at nine and " * 3, "returns at noon"
    ours = PlannedLM(short(40), "full")
    found, expected = likelihoods(ours, [(text, tail), ("A", "b")]), likelihoods(stock(llm, 40), [(text, tail)])
    assert found[0][0] == pytest.approx(expected[0][0], abs=1e-4)
    assert ours.costs.truncated == 1
    keywords = {"until": [], "max_gen_toks": 8}
    answers = ours.generate_until(requests("generate_until", [(text, keywords)]))
    assert answers == stock(llm, 40).generate_until(requests("generate_until", [(text, keywords)]), True)
    assert ours.costs.truncated == 2
    with pytest.raises(CapacityError, match="max_gen_toks=40 leaves no room"):
        ours.generate_until(requests("generate_until", [(text, {"max_gen_toks": 40})]))


def test_answers_stop_where_the_stock_model_stops(llm):
    [free] = PlannedLM(llm, "full").generate_until(requests("generate_until", [("ferry", {"max_gen_toks": 12})]))
    asked = [("ferry", {"until": until, "max_gen_toks": 12}) for until in ([], [free[4], "never"], [free[2:5]])]
    found = PlannedLM(llm, "full").generate_until(requests("generate_until", asked))
    assert found == stock(llm).generate_until(requests("generate_until", asked), True)
    assert found == [free, free.split(free[4])[0], free.split(free[2:5])[0]]


def test_answers_are_given_under_the_plan(llm):
    model = PlannedLM(llm, STREAMING)
    found = model.generate_until(requests("generate_until", [("The ferry leaves at", {"max_gen_toks": 12})]))
    [done] = llm.generate(["The ferry leaves at"], SamplingParams(max_tokens=12), plan=STREAMING)
    assert found == [done.text]
    assert model.costs.units_read == done.stats.units_read < done.stats.units_full == model.costs.units_full


def test_a_text_that_begins_with_the_first_token_gets_no_second(llm):
    ours, ids = PlannedLM(llm, "full"), llm.tokenizer("one")["input_ids"]
    assert (ours.tok_encode("one"), ours.tok_encode("<bos>one")) == (ids, [1, *ids])
    asked = [(text, {"max_gen_toks": 3}) for text in ("", "<bos>")]  # nothing stands for the first token
    empty, first = ours.generate_until(requests("generate_until", asked))
    assert empty == first


def test_generation_keywords_become_sampling_parameters_or_are_refused():
    assert sampling({"until": ["\n", ""], "do_sample": False, "temperature": 0.7}) == SamplingParams(
        max_tokens=256, stop=("\n",), seed=0
    )
    assert sampling({"until": "x", "do_sample": True, "top_p": 0.5, "max_new_tokens": 3}, seed=5) == SamplingParams(
        max_tokens=3, temperature=1.0, top_p=0.5, stop=("x",), seed=5
    )
    assert sampling({"temperature": 0.5, "num_beams": 1}).temperature == 0.5
    for keywords in ({"num_beams": 4}, {"penalty_alpha": 0.6}):
        [(name, value)] = keywords.items()
        with pytest.raises(InputError, match=f"{name}={value}"):
            sampling(keywords)


def test_tasks_run_under_plans_as_the_stock_model_runs_them(llm, folder):
    tasks = load_tasks(["choose", "answer"], include_path=folder)
    met = []
    runs = list(run_tasks(llm, ["full", STREAMING, "full"], tasks, progress=met.append))
    assert sum(met) == 3 * tasks.documents(None) == 15
    first, streaming, again = runs
    assert first.report["results"] == again.report["results"]  # tasks can be run again
    assert first.costs == again.costs
    expected = lm_eval.simple_evaluate(model=stock(llm), tasks=tasks.built, task_manager=tasks.manager)["results"]
    for task, metric in (("choose", "acc,none"), ("answer", "exact_match,none")):
        assert first.report["results"][task][metric] == expected[task][metric]
    assert streaming.costs.units_read < first.costs.units_read == first.costs.units_full
    assert streaming.costs.total_bytes < first.costs.total_bytes
    rows = scores(runs[:2])
    assert [(row.task, row.metric, row.plan) for row in rows] == [
        (task, metric, plan)
        for task, metric in (("choose", "acc"), ("answer", "exact_match"))
        for plan in ("full", STREAMING)
    ]
    for row in rows:
        assert row.of_full in (None, pytest.approx(row.value / max(1e-9, expected[row.task][f"{row.metric},none"])))
    assert rows[0].stderr == pytest.approx(expected["choose"]["acc_stderr,none"])


def test_a_rolling_task_is_for_full_attention(llm, folder):
    tasks = load_tasks(["roll"], include_path=folder)
    [run] = run_tasks(llm, ["full"], tasks, limit=1)
    words = len(re.split(r"\s+", TEXTS[0]["text"]))  # as lm_eval counts them
    value = stock(llm).loglikelihood_rolling(requests("loglikelihood_rolling", [(TEXTS[0]["text"],)]), True)[0]
    assert run.report["results"]["roll"]["word_perplexity,none"] == pytest.approx(math.exp(-value / words), rel=1e-4)
    with pytest.raises(InputError, match="task roll asks for the likelihood of whole texts"):
        run_tasks(llm, ["full", STREAMING], tasks)


def test_what_cannot_be_run_is_refused_before_any_work(llm, folder, monkeypatch):
    # lm_eval's own index of 14,000 names takes seconds to read.
    monkeypatch.setattr(harness_run, "TaskManager", partial(harness_run.TaskManager, include_defaults=False))
    with pytest.raises(InputError, match="did you mean choose"):
        load_tasks(["chose", str(folder / "choose.yaml")], include_path=folder)
    with pytest.raises(InputError, match="task lost or its data cannot be loaded"):
        load_tasks(["lost"], include_path=folder)
    with pytest.raises(PlanError):
        run_tasks(llm, ["speed(cutoff=9)"], load_tasks(["choose"], include_path=folder))
