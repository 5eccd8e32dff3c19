"""Clients that others have written, against a live server: lm_eval's, and OpenAI's for Node."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import httpx2
import openai
import pytest
from pydantic import BaseModel
from recipes.screens import served

from lm_eval_tasks import write_tasks
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.server.settings import Settings

SCRIPT = Path(__file__).with_name("client.cjs")


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """`choose`, `answer` and `roll`, and the key that lm_eval's clients send."""
    pytest.importorskip("lm_eval", reason="lm_eval is not installed (extra 'eval')")
    pytest.importorskip("tenacity", reason="lm_eval's client of servers lacks tenacity: pip install 'lm_eval[api]'")
    from winnow.evaluation.harness_run import load_tasks

    monkeypatch.setenv("OPENAI_API_KEY", "secret")  # of requests; auth_token is for the tokenizer's paths
    return load_tasks(["choose", "answer", "roll"], include_path=write_tasks(tmp_path))


def evaluated(tasks, model, **more):
    """lm_eval's report, and what the model answered to each document of each task."""
    import lm_eval

    report = lm_eval.simple_evaluate(
        model=model, tasks=tasks.built, task_manager=tasks.manager, bootstrap_iters=0, **more
    )
    answers = {(task, each["doc_id"]): each for task, samples in report["samples"].items() for each in samples}
    return report["results"], answers


def over_http(url, path="completions", **more):
    place = {"base_url": f"{url}/v1/{path}", "auth_token": "secret"}
    return {"model_args": {"model": "tiny", "max_length": 2000} | place | more}


def test_lm_eval_finds_over_http_what_it_finds_in_process(live, llm, tasks):
    """Choices, answers and whole texts, the tokenizer asked of the server; also where prompts come several at once.

    What is chosen and answered is the same. Likelihoods differ by rounding: in process a continuation is fed in decode
    steps, and the last token of a text not at all, where a server computes all of it as a prompt.
    """
    from winnow.evaluation.harness import PlannedLM

    url, _ = live
    expected, answers = evaluated(tasks, PlannedLM(llm, "full"))
    for more in ({}, {"num_concurrent": 3, "max_retries": 1}, {"batch_size": 2}):
        found, given = evaluated(tasks, "local-completions", **over_http(url, **more))
        assert found["choose"]["acc,none"] == expected["choose"]["acc,none"]
        assert found["answer"]["exact_match,none"] == expected["answer"]["exact_match,none"]
        for key in answers:
            if key[0] == "answer":
                assert given[key]["resps"] == answers[key]["resps"]
        for metric in ("word_perplexity,none", "bits_per_byte,none"):
            assert found["roll"][metric] == pytest.approx(expected["roll"][metric], rel=1e-6), (more, metric)


def test_likelihoods_over_http_are_to_the_bit_those_of_the_same_prompts(tasks):
    """On a deterministic model, beside others: neither the company nor JSON costs a digit."""
    llm = LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16, deterministic=True)
    with served(llm, "tiny", Settings(api_key=("secret",))) as (url, _):
        _, given = evaluated(tasks, "local-completions", **over_http(url, num_concurrent=3))
    chosen = [each for (task, _), each in given.items() if task == "choose"]
    assert len(chosen) == 3
    for each in chosen:
        for (context, continuation), [(found, _)] in zip(each["arguments"], each["resps"], strict=True):
            before, ids = llm.token_ids(context), llm.token_ids(context + continuation)
            params = SamplingParams(max_tokens=1, prompt_logprobs=1)
            said = llm.generate([ids], params)[0].prompt_logprobs
            assert found == sum(said[place][ids[place]] for place in range(len(before), len(ids)))


def test_lm_evals_chats(live, llm, tasks):
    """Its client of chats sends messages, which the server renders; in process lm_eval has them rendered."""
    from winnow.evaluation.harness import PlannedLM

    url, _ = live
    asked = replace(tasks, built=[task for task in tasks.built if task.config.task == "answer"])
    _, expected = evaluated(asked, PlannedLM(llm, "full"), apply_chat_template=True)
    more = over_http(url, "chat/completions", num_concurrent=2)
    _, given = evaluated(asked, "local-chat-completions", apply_chat_template=True, **more)
    assert {key: each["resps"] for key, each in given.items()} == {key: each["resps"] for key, each in expected.items()}
    assert any(each["resps"] != [[""]] for each in given.values())


def node_says(url, model):
    """What OpenAI's client for Node makes of a server; skips where there is none."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    if subprocess.run([node, "-e", "require('openai')"], capture_output=True).returncode:
        pytest.skip("node finds no openai: npm install --prefix DIR openai@6, and set NODE_PATH=DIR/node_modules")
    done = subprocess.run([node, SCRIPT, f"{url}/v1", "secret", model], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_node(told, llm, model):
    """All of it, beside what the model answers in process."""
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    talk = [{"role": "user", "content": "Where to?"}]
    assert told["models"] == [model]
    assert told["whole"] == llm.chat(talk, params, plan="streaming(sink=2, recent=9)")[0].text
    assert told["joined"] == llm.chat(talk, params)[0].text
    assert told["plan"] == "streaming(sink=2, recent=9)"
    assert (told["usage"]["completion_tokens"], told["usage"]["winnow"]["plan"]) == (9, "full")
    assert (told["text"], told["tokens"]) == (llm.generate("ab", SamplingParams(max_tokens=5))[0].text, 5)
    assert told["errors"] == {
        "plan": ["BadRequestError", 400, None, "plan"],
        "model": ["NotFoundError", 404, "model_not_found", "model"],
    }


def test_openais_client_for_node(live, llm):
    """It is found in NODE_PATH: npm install --prefix DIR openai@6, and NODE_PATH=DIR/node_modules."""
    check_node(node_says(live[0], "tiny"), llm, "tiny")


@pytest.fixture(scope="module")
def pretrained(smollm2):
    """The pre-trained model behind a server: its address, and the model in this process."""
    llm = LLM(smollm2, deterministic=True, device="cpu")
    with served(llm, "smollm2", Settings(api_key=("secret",))) as (url, _):
        yield url, llm


def test_openais_client_for_node_and_a_pre_trained_model(pretrained):
    url, llm = pretrained
    check_node(node_says(url, "smollm2"), llm, "smollm2")


@pytest.fixture
def client(pretrained):
    with openai.OpenAI(base_url=f"{pretrained[0]}/v1", api_key="secret", max_retries=0, timeout=60) as made:
        yield made


ASKED = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.8, "top_p": 0.9, "seed": 11, "n": 2},
    "with a plan": {"temperature": 0, "extra_body": {"plan": "streaming(sink=4, recent=32)"}},
    "penalised": {"temperature": 0, "presence_penalty": 0.7, "frequency_penalty": 0.4, "logit_bias": {"253": -100}},
    "stopped": {"temperature": 0, "stop": ["."]},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_pre_trained_models_stream_is_its_answer(client, asked):
    def joined(chunks, text):
        said = {}
        for chunk in chunks:
            for choice in chunk.choices:
                said[choice.index] = said.get(choice.index, "") + (text(choice) or "")
        return said

    common = {"model": "smollm2", "max_tokens": 24} | asked
    talk = [{"role": "user", "content": "Name three rivers of France."}]
    whole = client.chat.completions.create(messages=talk, **common)
    chunks = client.chat.completions.create(messages=talk, stream=True, **common)
    texts = {choice.index: choice.message.content for choice in whole.choices}
    assert joined(chunks, lambda choice: choice.delta.content) == texts
    assert all(texts.values())
    whole = client.completions.create(prompt="The ferry leaves the harbour at", logprobs=2, **common)
    chunks = client.completions.create(prompt="The ferry leaves the harbour at", stream=True, **common)
    texts = {choice.index: choice.text for choice in whole.choices}
    assert joined(chunks, lambda choice: choice.text) == texts
    assert all(len(choice.logprobs.tokens) == len(choice.logprobs.top_logprobs) > 0 for choice in whole.choices)


def test_a_pre_trained_models_answer_of_a_type(client):
    class River(BaseModel):
        name: str
        navigable: bool

    talk = [{"role": "user", "content": "Tell me of a river of France."}]
    made = client.chat.completions.parse(
        model="smollm2", messages=talk, response_format=River, temperature=0, max_tokens=200
    )
    assert isinstance(made.choices[0].message.parsed, River)


def test_a_pre_trained_models_errors_are_the_clients(client):
    def create(**others):
        return client.chat.completions.create(
            **{"model": "smollm2", "messages": [{"role": "user", "content": "Where to?"}], "max_tokens": 4} | others
        )

    with pytest.raises(openai.BadRequestError) as found:
        create(messages=[{"role": "user", "content": "ferry " * 9000}])
    assert found.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        create(model="gpt-5")
    with pytest.raises(openai.BadRequestError, match="tools: not supported"):
        create(tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(openai.BadRequestError) as found:
        create(extra_body={"plan": "speed(cutoff=99)"})
    assert found.value.param == "plan"


def test_lm_eval_finds_of_a_pre_trained_model_over_http_what_it_finds_in_process(pretrained, tasks):
    from winnow.evaluation.harness import PlannedLM

    url, llm = pretrained
    asked = replace(tasks, built=[task for task in tasks.built if task.config.task != "roll"])
    expected, answers = evaluated(asked, PlannedLM(llm, "full"))
    more = over_http(url, num_concurrent=3)
    more["model_args"]["model"] = "smollm2"
    found, given = evaluated(asked, "local-completions", **more)
    assert found["choose"]["acc,none"] == expected["choose"]["acc,none"]
    assert {key: each["resps"] for key, each in given.items() if key[0] == "answer"} == {
        key: each["resps"] for key, each in answers.items() if key[0] == "answer"
    }


def test_a_trace_names_the_model_as_people_do(pretrained):
    """And not by the place where its file is unpacked."""
    url, llm = pretrained
    reply = httpx2.post(
        f"{url}/trace/v1/completions",
        json={"prompt": "The capital of France is", "max_tokens": 2},
        headers={"Authorization": "Bearer secret"},
        timeout=60,
    )
    assert reply.status_code == 200
    assert llm.model.config.name_or_path in re.findall('"model": ?"(.*?)"', reply.text)
    assert "SmolLM2" in llm.model.config.name_or_path
