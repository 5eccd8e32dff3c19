"""Training of convolutions: the compressed forward and its gradient, whole runs, what can be resumed, what is left."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from models import small_model
from tiny import save_tiny_model, tiny_model
from tokenizers_for_tests import byte_tokenizer
from trials import small_convolutions, small_llm
from winnow import LLM, Plan, SamplingParams
from winnow.errors import InputError, ModelError
from winnow.learn.compressed import Compressed
from winnow.learn.convolutions import train_convolutions
from winnow.learn.convolutions_learner import ConvolutionsLearner
from winnow.learn.convolutions_recipe import ConvolutionsRecipe
from winnow.learn.run import Progress, Report
from winnow.models.packed import quantize_model
from winnow.policies.keep.lococo import LoCoCo
from winnow.runtime.convolutions import Convolutions

QUICK = ConvolutionsRecipe(
    budget=16, sums=8, chunk=20, kernel=5, length=120, steps=6, accumulate=2, learning_rate=0.02, save_every=2
)  # fmt: skip
FILES = ["README.md", "config.json", "convolutions.safetensors", "log.jsonl", "winnow.json"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five texts, one of them too short to be compressed."""
    rows = [{"prompt": f"The key is {n}. " * (5 + n % 3) + "Key?", "answer": f"{n}"} for n in range(4)]
    rows.append({"prompt": "Short.", "answer": "Yes."})
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tiny_llm(**options: Any) -> LLM:
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=32, **options)


def train(data: Path, out: Path, recipe: ConvolutionsRecipe = QUICK, **settings: Any) -> Report:
    return train_convolutions(tiny_llm(), data, out, recipe, **settings)


def same(first: Path, second: Path) -> None:
    mine, its = (load_file(out / "convolutions.safetensors") for out in (first, second))
    assert mine.keys() == its.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], its[name], rtol=0, atol=0)


def log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["llama", "llama-9-3", "gemma2", "smollm3", "gpt_oss"])
def test_what_is_learnt_is_what_the_plan_computes(name: str, text: list[int]) -> None:
    """The loss of every chunk: that of the logits of the same prompt cut after each of its tokens."""
    llm, policy = small_llm(name), LoCoCo(budget=9, chunk=8, decode_chunk=3)
    read = Compressed(llm.decoder, policy, llm.decoder.convolutions(None), text)
    with llm.decoder.driving(), torch.no_grad():
        losses = [read.read().item() for _ in range(0, len(text) - 1, 8)]
    for chunk, loss in enumerate(losses):
        first, last = 8 * chunk, min(8 * chunk + 8, len(text) - 1)
        # A token is the last of its prompt, whose other rows came before in the same chunk.
        rows = [
            llm.logits(text[:end], decode_from=end, plan=Plan(keep=policy))[0] for end in range(first + 1, last + 1)
        ]
        expected = F.cross_entropy(torch.stack(rows), torch.tensor(text[first + 1 : last + 1])).item()
        assert loss == pytest.approx(expected, abs=1e-5)


def test_gradients_are_those_of_differences(text: list[int]) -> None:
    """Of the chunk right after the first compression, which is all that has been differentiated then."""
    llm = LLM(small_model("llama"))
    drawn = small_convolutions(llm)
    layers = drawn.layers
    policy = LoCoCo(budget=9, chunk=12, decode_chunk=3)

    def loss(convolutions: Convolutions) -> torch.Tensor:
        read = Compressed(llm.decoder, policy, convolutions, text[:24])
        with llm.decoder.driving():
            read.read()
            return read.read()

    for name in ("weight", "bias", "share"):
        value = getattr(layers[1], name)
        value.requires_grad_()
        [gradient] = torch.autograd.grad(loss(Convolutions(drawn.config, layers)), value)
        value.requires_grad_(False)
        way, ends = gradient / gradient.norm(), []  # short: weights of units begin and end at 0
        for step in (1e-2, -1e-2):
            moved = [*layers]
            moved[1] = replace(layers[1], **{name: value + step * way})
            ends.append(loss(Convolutions(drawn.config, moved)).item())
        assert gradient.norm().item() == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=5e-2, abs=5e-5)
        assert gradient.norm() > 3e-4


def test_a_run_learns_and_leaves_the_model_alone(data: Path, tmp_path: Path) -> None:
    llm, before = tiny_llm(), tiny_model().state_dict()
    steps: list[Progress] = []
    recipe = replace(QUICK, steps=25, accumulate=4)
    report = train_convolutions(llm, data, tmp_path / "out", recipe, progress=steps.append)
    result = report.record["result"]
    assert result["loss_last"] < result["loss_first"] - 0.02
    assert [each.step for each in steps] == list(range(1, 26))
    assert steps[-1].tokens == result["tokens"] == 25 * report.record["data"]["tokens"]
    assert (report.record["data"]["samples"], report.record["data"]["too_short"]) == (4, 1)
    assert report.files == FILES
    for name, weight in llm.model.state_dict().items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in llm.model.parameters())


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(data: Path, tmp_path: Path) -> None:
    whole, parts, recipe = tmp_path / "whole", tmp_path / "parts", replace(QUICK, log_every=4)
    expected = train(data, whole, recipe).record["result"]

    def stop(progress: Progress) -> None:
        if progress.step == 3:  # one step behind the checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, parts, recipe, progress=stop)
    assert [path.name for path in parts.glob("checkpoint-*")] == ["checkpoint-2"]
    resumed = train(data, parts, recipe, resume=True)
    same(whole, parts)
    assert {**resumed.record["result"], "seconds": 0} == {**expected, "seconds": 0}
    assert [{**line, "s": 0} for line in log(parts)] == [{**line, "s": 0} for line in log(whole)]
    assert [line["step"] for line in log(parts)] == [4, 6]
    assert resumed.files == FILES
    with pytest.raises(InputError, match="is finished"):
        train(data, parts, recipe, resume=True)


def test_another_run_is_not_resumed(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, out, progress=stop)
    with pytest.raises(InputError, match="sums 8 before, 7 now"):
        train(data, out, replace(QUICK, sums=7), resume=True)


def test_what_is_trained_is_used_and_refused_elsewhere(data: Path, tmp_path: Path) -> None:
    base, out = save_tiny_model(tmp_path / "some-model"), tmp_path / "out"
    train_convolutions(LLM(base), data, out, QUICK)
    settings, params = "budget=16, chunk=20", SamplingParams(max_tokens=3)
    prompt = "The key is 3. " * 6
    [named] = LLM(base).generate(prompt, params, plan=f"lococo({settings}, convolutions='{out}')")
    [given] = LLM(base, convolutions=out).generate(prompt, params, plan=f"lococo({settings})")
    assert given.token_ids == named.token_ids
    config = Convolutions.load(out).config
    record = json.loads((out / "winnow.json").read_text(encoding="utf-8"))
    assert (config.base, config.sums, config.kernel, record["plan"]) == (
        "some-model", 8, 5, "lococo(budget=16, chunk=20)",
    )  # fmt: skip
    assert (config.recipe, config.data, config.result) == (record["recipe"], record["data"], record["result"])
    assert 'LLM("some-model", convolutions="DIRECTORY")' in (out / "README.md").read_text(encoding="utf-8")
    for path in out.iterdir():
        assert str(tmp_path) not in path.read_bytes().decode("utf-8", errors="replace"), path.name
    with pytest.raises(ModelError, match="trained on some-model, and this model, LlamaForCausalLM, has other weights"):
        LLM(small_model(), convolutions=out)


def test_what_cannot_be_trained_is_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"of no text the first length=120 tokens are 122, .*; use longer texts"):
        train(data, tmp_path / "out", replace(QUICK, budget=100))
    packed = small_model()
    quantize_model(packed)
    with pytest.raises(ModelError, match="weights='dense'"):
        train_convolutions(LLM(packed), data, tmp_path / "out", QUICK)
    with pytest.raises(ModelError, match="all layers of the model have sliding windows"):
        train_convolutions(LLM(small_model("mistral")), data, tmp_path / "out", QUICK)
    with pytest.raises(InputError, match="sums=16 must be below budget=16"):
        replace(QUICK, sums=16)
    with pytest.raises(InputError, match="kernel=4 must be odd"):
        replace(QUICK, kernel=4)
    assert not (tmp_path / "out").exists()


def test_a_loss_that_is_no_number_ends_the_run(data: Path, tmp_path: Path) -> None:
    llm = tiny_llm()
    drawn = Convolutions.random(small_convolutions(llm).config, seed=0)
    drawn.layers[0].weight.fill_(torch.nan)
    learner = ConvolutionsLearner(drawn, replace(QUICK, sums=4))
    with pytest.raises(InputError, match="the loss is nan at step 1; use a smaller learning rate"):
        learner.learn(0, llm.decoder, [list(range(3, 83))])
