"""Training of convolutions: the compressed forward and its gradient, whole runs, what can be resumed, what is left."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from learning import keys, tiny_llm, write
from models import small_model
from trials import small_convolutions, small_llm
from winnow import LLM, Plan
from winnow.errors import InputError, ModelError
from winnow.learn.compressed import Compressed
from winnow.learn.convolutions import train_convolutions
from winnow.learn.convolutions_learner import ConvolutionsLearner
from winnow.learn.convolutions_recipe import ConvolutionsRecipe
from winnow.models.packed import quantize_model
from winnow.policies.keep.lococo import LoCoCo
from winnow.runtime.convolutions import Convolutions

QUICK = ConvolutionsRecipe(
    budget=16, sums=8, chunk=20, kernel=5, length=120, steps=6, accumulate=2, learning_rate=0.02, save_every=2
)  # fmt: skip
FILES = ["README.md", "config.json", "convolutions.safetensors", "log.jsonl", "winnow.json"]


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


def test_what_cannot_be_trained_is_refused_before_any_work(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", keys(4, 5))
    with pytest.raises(InputError, match=r"of no text the first length=120 tokens are 122, .*; use longer texts"):
        train_convolutions(tiny_llm(), data, tmp_path / "out", replace(QUICK, budget=100))
    packed = small_model()
    quantize_model(packed)
    with pytest.raises(ModelError, match="weights='dense'"):
        train_convolutions(LLM(packed), data, tmp_path / "out", QUICK)
    with pytest.raises(ModelError, match="all layers of the model have sliding windows"):
        train_convolutions(LLM(small_model("mistral")), data, tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()


def test_a_loss_that_is_no_number_ends_the_run() -> None:
    llm = tiny_llm()
    drawn = Convolutions.random(small_convolutions(llm).config, seed=0)
    drawn.layers[0].weight.fill_(torch.nan)
    learner = ConvolutionsLearner(drawn, replace(QUICK, sums=4))
    with pytest.raises(InputError, match="the loss is nan at step 1; use a smaller learning rate"):
        learner.learn(0, llm.decoder, [list(range(3, 83))])
