"""Labels of retaining heads against the stock model: its own projections, its own rotation, its own scale."""

import sys
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from models import CONFIGS, small_model
from winnow.learn.labels import Sample, label
from winnow.runtime.decoder import Decoder

PROMPT, LENGTH = 30, 20


class Stock:
    """One eager forward over a text. per layer: queries, keys [heads, tokens, head_dim] as attention is given them,
    rotated; scale; projected, what the modules that make q, k and v have put out, [tokens, width]."""

    def __init__(self, model: PreTrainedModel, text: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.queries: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.scales: list[float] = []
        self.projected: dict[str, list[Tensor]] = defaultdict(list)
        layers: Any = model.model.layers
        family = sys.modules[type(layers[0].self_attn).__module__]
        eager = family.eager_attention_forward

        def record(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **others: Any) -> Any:
            self.queries.append(q[0])
            self.keys.append(k[0])
            self.scales.append(others["scaling"])
            return eager(module, q, k, v, mask, **others)

        monkeypatch.setattr(family, "eager_attention_forward", record)
        for layer in layers:
            for name in ("q_proj", "k_proj", "v_proj", "qkv_proj", "q_norm", "k_norm"):
                if hasattr(layer.self_attn, name):
                    getattr(layer.self_attn, name).register_forward_hook(self._hook(name))
        with torch.no_grad():
            model(torch.tensor([text]), use_cache=False)

    def _hook(self, name: str) -> Any:
        def keep(module: Any, arguments: Any, out: Tensor) -> None:
            self.projected[name].append(out[0].flatten(1))

        return keep

    def inputs(self, layer: int) -> Tensor:
        if "qkv_proj" in self.projected:
            return self.projected["qkv_proj"][layer]
        normed = "q_norm" in self.projected
        names = ("q_norm", "k_norm", "v_proj") if normed else ("q_proj", "k_proj", "v_proj")
        return torch.cat([self.projected[name][layer] for name in names], 1)

    def target(self, layer: int, kv_head: int, token: int, prompt: int) -> float:
        group = len(self.queries[layer]) // len(self.keys[layer])
        heads = range(kv_head * group, (kv_head + 1) * group)
        key, scale = self.keys[layer][kv_head, token], self.scales[layer]
        return max(float(scale * (self.queries[layer][head, prompt:] @ key).max()) for head in heads)


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gemma2", "phi3-longrope-long", "smollm3", "granite"])
def test_labels_are_the_stock_models_logits(name: str, text: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    made = label(Decoder(small_model(name)), Sample(text, PROMPT), length=LENGTH, chunk=7)
    stock = Stock(small_model(name), text, monkeypatch)
    assert len(made.inputs) == len(made.targets) == len(stock.keys) == 4
    for layer, (inputs, targets) in enumerate(zip(made.inputs, made.targets, strict=True)):
        torch.testing.assert_close(inputs, stock.inputs(layer)[:LENGTH], rtol=0, atol=1e-5)
        expected = [[stock.target(layer, head, token, PROMPT) for token in range(LENGTH)] for head in range(2)]
        torch.testing.assert_close(targets, torch.tensor(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_labels_do_not_depend_on_how_the_text_is_cut(name: str, text: list[int]) -> None:
    decoder = Decoder(small_model(name))
    whole = label(decoder, Sample(text, PROMPT), length=100, chunk=1000)
    assert whole.targets[0].shape == (2, PROMPT)
    pieces = label(decoder, Sample(text, PROMPT), length=100, chunk=4)
    shorter = label(decoder, Sample(text, PROMPT), length=9, chunk=11)
    for layer in range(4):
        torch.testing.assert_close(whole.inputs[layer], pieces.inputs[layer], rtol=0, atol=1e-5)
        torch.testing.assert_close(whole.targets[layer], pieces.targets[layer], rtol=0, atol=1e-5)
        torch.testing.assert_close(whole.inputs[layer][:9], shorter.inputs[layer], rtol=0, atol=1e-5)
        torch.testing.assert_close(whole.targets[layer][:, :9], shorter.targets[layer], rtol=0, atol=1e-5)


def test_only_what_follows_the_prompt_asks(text: list[int]) -> None:
    decoder = Decoder(small_model())
    short = label(decoder, Sample(text[: PROMPT + 1], PROMPT), length=100, chunk=8)
    more = label(decoder, Sample(text, PROMPT), length=100, chunk=8)
    for layer in range(4):
        assert (more.targets[layer] >= short.targets[layer] - 1e-5).all()
        assert (more.targets[layer] > short.targets[layer] + 1e-3).any()


def test_many_answer_rows_are_looked_at_in_blocks(text: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder(small_model())
    whole = label(decoder, Sample(text, 10), length=100, chunk=48)
    monkeypatch.setattr("winnow.learn.labels.LOGIT_ROWS", 3)
    blocks = label(decoder, Sample(text, 10), length=100, chunk=48)
    torch.testing.assert_close(whole.targets, blocks.targets, rtol=0, atol=1e-6)
