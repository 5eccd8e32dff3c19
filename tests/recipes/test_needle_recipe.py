"""The recipe of the bundled model, end to end on a tiny corpus."""

import json
import lzma
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))
config = pytest.importorskip("recipes.needle.config")
from recipes.needle.__main__ import until  # noqa: E402
from recipes.needle.export import export, load  # noqa: E402
from recipes.needle.mixture import ANSWER, Mixture, stretched_positions  # noqa: E402
from recipes.needle.model import TrainingForward, build_model  # noqa: E402
from recipes.needle.train import train  # noqa: E402

from winnow.tasks.haystack import bundled_haystack  # noqa: E402

SMALL = config.ModelConfig(vocab=600, hidden=32, mlp=64, layers=2, head_dim=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The settings of a finished tiny run."""
    folder = tmp_path_factory.mktemp("needle")
    text = "".join(bundled_haystack().sentences[:400])
    (folder / "corpus" / "val").mkdir(parents=True)
    for name in ("books", "textbooks", "docs", "val/books"):
        with lzma.open(folder / "corpus" / f"{name}.txt.xz", "wt") as file:
            file.write(f"{text}\n<|endoftext|>\n")
    settings = config.RunConfig(
        corpus=folder / "corpus", out=folder / "run", model=SMALL, stages=config.TINY_STAGES, processes=1,
        step_tokens=512, compiled=False, checkpoint_s=0.0, log_s=0.0, validate_s=0.0,
    )  # fmt: skip
    train(settings)
    return settings


def test_export_is_a_normal_model_directory(run, tmp_path):
    export(run.out, tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.model_type == "llama"
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.bos_token_id]
    text = "Digits 2048,\n\n Greek λόγος, “quotes” and \ttabs."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert all(len(token) <= 2 for token in tokenizer.tokenize("2048 2048"))


def test_a_second_call_goes_on_where_the_first_stopped(run):
    torch.manual_seed(1)
    before = torch.load(run.out / "checkpoint.pt", weights_only=True)
    longer = (*run.stages[:-1], replace(run.stages[-1], tokens=run.stages[-1].tokens + 512))
    train(replace(run, stages=longer))
    after = torch.load(run.out / "checkpoint.pt", weights_only=True)
    assert after["place"]["step"] == before["place"]["step"] + 1
    assert after["place"]["tokens"] == before["place"]["tokens"] + 512


def test_a_course_that_ends_early_has_the_stages_before_and_a_rate_that_falls():
    short = until("2048")
    assert short[:-1] == config.STAGES[:4]
    assert short[-1] == replace(config.STAGES[4], lr_end=short[-1].lr / 40)
    assert short[-1].lr_end < config.STAGES[4].lr_end / 10


def test_training_forward_is_the_stock_forward_and_sees_across_gaps():
    torch.manual_seed(0)
    model = build_model(SMALL).eval()
    forward = TrainingForward(model, dtype=torch.float32, compiled=False)
    ids, positions = torch.randint(600, (2, 40)), torch.arange(40).repeat(2, 1)
    with torch.no_grad():
        mine = forward.logits(forward(ids, positions).flatten(0, 1)).view(2, 40, 600)
        torch.testing.assert_close(mine, model(ids).logits, rtol=0, atol=1e-4)
        positions[:, 20:] += 100
        changed = ids.clone()
        changed[:, 3] = (changed[:, 3] + 1) % 600
        last = [forward(x, positions)[:, -1] for x in (ids, changed)]
    assert not torch.equal(*last)


def test_batches_are_reproducible_and_answers_weigh_most(run):
    mixture = Mixture(run.out, max_positions=4096, seed=0)
    stage = replace(config.STAGES[3], text=0.0, copying=0.0)
    first, second = (mixture.batch(stage, step=5, rank=0, step_tokens=2048) for _ in range(2))
    assert np.array_equal(first.ids, second.ids)
    assert first.answers
    assert (first.weights[first.answer >= 0] == ANSWER).all()
    assert "<|user|>" in mixture.tokenizer.decode(first.ids[0])


def test_stretched_positions_only_grow():
    rng = random.Random(0)
    for _ in range(50):
        positions = stretched_positions(rng, 256, 16_384)
        assert (np.diff(positions) >= 1).all()
        assert positions[0] == 0
        assert positions[-1] < 16_384


def test_every_log_line_is_json(run):
    lines = (run.out / "log.jsonl").read_text().splitlines()
    assert lines
    for line in lines:
        assert {"stage", "step", "tokens", "loss", "val_nll"} <= set(json.loads(line))


def test_loaded_model_is_in_float32(run):
    model, _ = load(run.out)
    assert model.dtype == torch.float32
