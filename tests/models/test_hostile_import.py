"""Directories made by `winnow import`, damaged: each loads or is one line, and nothing in any of them is run."""

import json
import random

import pytest
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from hostile import mutate
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.errors import ModelError, WinnowError
from winnow.models.gguf.convert import Held
from winnow.models.gguf.directory import PACKED, write_directory
from winnow.models.packed import named_weights, quantize_model

NEW = SamplingParams(max_tokens=2, ignore_eos=True)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A tiny model of packed weights, in one file that is called as the mutator expects it."""
    model, place = tiny_model(), tmp_path_factory.mktemp("converted") / "model"
    assert quantize_model(model)
    held = [(name, Held(value, "Q4_0")) for name, value in named_weights(model)]
    source = {"name": "x.gguf", "sha256": "0" * 64, "bytes": 1}
    write_directory(place, model.config, byte_tokenizer(), GenerationConfig(eos_token_id=2), held, source)
    return place


def resized(place):
    """The record's sizes made right again, as whoever means harm would."""
    record = json.loads((place / PACKED).read_text())
    record["files"] = {name: (place / name).stat().st_size for name in record["files"] if (place / name).is_file()}
    (place / PACKED).write_text(json.dumps(record))


def test_it_loads_whole(converted):
    assert LLM(converted, device="cpu").generate([[5, 6]], NEW)[0].token_ids


def test_damage_is_one_line(converted, tmp_path):
    [shard] = converted.glob("*.safetensors")
    source, refused = tmp_path / "source", 0
    source.mkdir()
    for path in converted.iterdir():
        (source / ("model.safetensors" if path == shard else path.name)).write_bytes(path.read_bytes())
    for seed in range(75):
        place, marker = tmp_path / str(seed), tmp_path / "marker"
        how = mutate(source, place, seed, marker)
        if (place / "model.safetensors").exists() or (place / "model.safetensors").is_symlink():
            (place / "model.safetensors").rename(place / shard.name)
        if random.Random(seed).random() < 0.8:
            resized(place)
        try:
            LLM(place, device="cpu").generate([[5, 6]], NEW)
        except WinnowError as error:
            said = str(error)
            refused += 1
        except BaseException as error:
            raise AssertionError(f"{how}, seed {seed}") from error
        else:
            said = ""
        assert "\n" not in said, (seed, how)
        assert not marker.exists(), (seed, how)
    assert refused >= 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("model.norm.weight"),
            "lacks 1 tensors the model needs, such as model.norm.weight",
        ),
        (lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"][:9].clone()}), "the shape"),
        (
            lambda tensors: tensors["model.norm.weight"].fill_(float("nan")),
            "model.norm.weight holds values that are not",
        ),
    ],
)
def test_tensors_of_another_model(converted, tmp_path, change, message):
    place = tmp_path / "model"
    place.mkdir()
    for path in converted.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    [shard] = place.glob("*.safetensors")
    tensors = load_file(shard)
    change(tensors)
    save_file(tensors, shard)
    record = json.loads((place / PACKED).read_text())
    record["tensors"] = {name: facts for name, facts in record["tensors"].items() if name in tensors}
    (place / PACKED).write_text(json.dumps(record))
    resized(place)
    with pytest.raises(ModelError, match=message):
        LLM(place, device="cpu")
