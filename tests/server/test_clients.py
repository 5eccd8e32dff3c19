"""Clients that others have written, against a live server: lm_eval's, and OpenAI's for Node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from lm_eval_tasks import write_tasks
from winnow import SamplingParams

SCRIPT = Path(__file__).with_name("client.cjs")


def test_lm_eval_finds_over_http_what_it_finds_in_process(live, llm, tmp_path, monkeypatch):
    """Choices, answers and whole texts, the tokenizer asked of the server; also where prompts come several at once."""
    pytest.importorskip("lm_eval", reason="lm_eval is not installed (extra 'eval')")
    pytest.importorskip("tenacity", reason="lm_eval's client of servers lacks tenacity: pip install 'lm_eval[api]'")
    import lm_eval

    from winnow.evaluation.harness_run import load_tasks, run_tasks

    url, _ = live
    monkeypatch.setenv("OPENAI_API_KEY", "secret")  # of requests; auth_token is for the tokenizer's paths
    tasks = load_tasks(["choose", "answer", "roll"], include_path=write_tasks(tmp_path))
    [expected] = run_tasks(llm, ["full"], tasks)
    for more in ({}, {"num_concurrent": 3, "max_retries": 1}, {"batch_size": 2}):
        given = {"model": "tiny", "base_url": f"{url}/v1/completions", "auth_token": "secret", "max_length": 2000}
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args=given | more,
            tasks=tasks.built,
            task_manager=tasks.manager,
            bootstrap_iters=0,
        )
        for task, metrics in (
            ("choose", ["acc"]),
            ("answer", ["exact_match"]),
            ("roll", ["word_perplexity", "bits_per_byte"]),
        ):
            for metric in metrics:
                mine, its = (each[task][f"{metric},none"] for each in (found["results"], expected.report["results"]))
                assert mine == pytest.approx(its, rel=1e-5), (more, task, metric)


def test_openais_client_for_node(live, llm):
    """It is found in NODE_PATH: npm install --prefix DIR openai@6, and NODE_PATH=DIR/node_modules."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    if subprocess.run([node, "-e", "require('openai')"], capture_output=True).returncode:
        pytest.skip("node finds no openai: npm install --prefix DIR openai@6, and set NODE_PATH=DIR/node_modules")
    url, _ = live
    done = subprocess.run([node, SCRIPT, f"{url}/v1", "secret"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    talk = [{"role": "user", "content": "Where to?"}]
    assert told["models"] == ["tiny"]
    assert told["whole"] == llm.chat(talk, params, plan="streaming(sink=2, recent=9)")[0].text
    assert told["joined"] == llm.chat(talk, params)[0].text
    assert told["plan"] == "streaming(sink=2, recent=9)"
    assert (told["usage"]["completion_tokens"], told["usage"]["winnow"]["plan"]) == (9, "full")
    assert (told["text"], told["tokens"]) == (llm.generate("ab", SamplingParams(max_tokens=5))[0].text, 5)
    assert told["errors"] == {
        "plan": ["BadRequestError", 400, None, "plan"],
        "model": ["NotFoundError", 404, "model_not_found", "model"],
    }
