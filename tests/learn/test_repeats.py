"""Heads that learn what KVzip scores: labels against stock attention, whole runs, what is resumed, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kvzip_reference import scores_of
from learning import keys, same, stop_at, tiny_llm, write
from models import small_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.errors import InputError, ModelError
from winnow.learn.heads import train_heads
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.repeats import label_repeated
from winnow.policies.keep.kvzip import KVzip
from winnow.runtime.heads import RetainingHeads, joined
from winnow.runtime.observer import Observer

QUICK = HeadsRecipe(width=8, steps=6, learning_rate=5e-3, length=64, save_every=2, log_every=4, validate_every=3)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", keys(6, 1))


@pytest.mark.parametrize("chunk", [7, 64])
def test_labels_are_the_logarithm_of_what_repeating_gives(chunk: int) -> None:
    llm = tiny_llm(prefill_chunk=chunk)
    ids = llm.tokenizer("A fox and a dog. The fox saw the dog, the dog saw the fox.")["input_ids"]
    made = label_repeated(llm, ids, length=40)
    repeats = KVzip(budget=5, local=1).repeats(ids[:41], llm.services)
    expected = scores_of(llm.model, ids, [(list(each.tokens), each.first, each.stop) for each in repeats], 4)
    torch.testing.assert_close(torch.stack(made.targets), torch.tensor(expected).log(), rtol=0, atol=1e-4)
    assert all(each.shape == (40, (4 + 2 * 2) * 8) for each in made.inputs)
    assert not any(each.is_inference() for each in (*made.inputs, *made.targets))

    class First(Observer):
        """The projections of the first layer under full attention."""

        def __init__(self) -> None:
            self.rows: list[Any] = []

        def projected(self, layer: int, part: Any, q: Any, k: Any, v: Any, scale: float) -> None:
            if layer == 0:
                self.rows.append(joined(q, k, v))

    first = First()
    llm.session(max_tokens=1, observer=first).feed(ids[:40])
    torch.testing.assert_close(made.inputs[0], torch.cat(first.rows), rtol=0, atol=1e-5)


def test_heads_learn_and_are_used(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    made = train_heads(tiny_llm(), data, out, replace(QUICK, steps=40), target="repeat", validation=data)
    assert made.record["plan"] == "kvzap"
    assert made.record["result"]["loss_last"] < made.record["result"]["loss_first"]
    assert RetainingHeads.load(out).config.target == "repeat"
    assert "kvzap(threshold" in (out / "README.md").read_text(encoding="utf-8")
    prompt, params = "The key is 3. " * 8, SamplingParams(max_tokens=3, ignore_eos=True)
    llm = tiny_llm()
    most = llm.generate(prompt, params)[0].stats.cache_bytes
    heads = RetainingHeads.load(out).beside(llm.model)
    inputs = torch.cat(label_repeated(llm, llm.tokenizer(prompt)["input_ids"], length=200).inputs)
    middle = float(heads.score(0, inputs).median())
    kept = llm.generate(prompt, params, plan=f"kvzap(threshold={middle}, recent=8, heads={str(out)!r})")[0].stats
    assert kept.cache_bytes < most
    with pytest.raises(ModelError, match="trained on"):
        LLM(small_model("llama")).prepare(f"kvzap(heads={str(out)!r})")


def test_a_run_goes_on_to_the_same_weights(data: Path, tmp_path: Path) -> None:
    train_heads(tiny_llm(), data, tmp_path / "whole", QUICK, target="repeat")

    out = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        train_heads(tiny_llm(), data, out, QUICK, target="repeat", progress=stop_at(3))
    with pytest.raises(InputError, match="holds another run: plan"):
        train_heads(tiny_llm(), data, out, QUICK, resume=True)
    train_heads(tiny_llm(), data, out, QUICK, target="repeat", resume=True)
    same(*(load_file(tmp_path / name / "retaining_heads.safetensors") for name in ("parts", "whole")))


def test_windows_are_refused(data: Path, tmp_path: Path) -> None:
    model = small_model("gemma2")
    llm = LLM(model, tokenizer=byte_tokenizer())
    with pytest.raises(InputError, match=r"sliding window.*winnow train locret"):
        train_heads(llm, data, tmp_path / "out", QUICK, target="repeat")
    assert not (tmp_path / "out").exists()
