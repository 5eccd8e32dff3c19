"""A seeded mutator: a model directory, damaged or made hostile in one way, the same way for the same seed."""

import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
JSON = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 10**6, 2**31, 2**63, 10**30, -0.5, 1e308, float("nan"), float("inf"), "", "x", "1",
    "../..", "y" * 5000, [], [None], [1, "a"], [[1]], {}, {"a": {"b": []}}, {"rope_type": "yarn"}, {"rope_type": 5},
)  # fmt: skip
EXTRA = (
    "quantization_config", "auto_map", "attn_implementation", "_attn_implementation", "head_dim", "layer_types",
    "sliding_window", "rope_scaling", "rope_parameters", "text_config", "per_layer_config", "to_dict", "dtype",
    "torch_dtype", "name_or_path", "num_experts", "pruned_heads", "tie_word_embeddings", "distributed_config",
)  # fmt: skip


class Runs:
    """Unpickled, it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def mutate(source: Path, target: Path, seed: int, marker: Path) -> str:
    """Copy `source` to `target` and damage it; returns how. marker: what only code in the directory would make."""
    rng = random.Random(seed)
    shutil.copytree(source, target)
    how = MUTATIONS[seed % len(MUTATIONS)]
    how(target, rng, marker)
    return how.__name__.strip("_")


def _cut(place: Path, rng: random.Random, marker: Path) -> None:
    path = place / rng.choice((*JSON, WEIGHTS))
    raw = path.read_bytes()
    path.write_bytes(raw[: rng.randrange(len(raw))])


def _flip(place: Path, rng: random.Random, marker: Path) -> None:
    path = place / rng.choice((*JSON, WEIGHTS))
    raw = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 4, 64))):
        raw[rng.randrange(min(len(raw), 4000))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)


def _setting(place: Path, rng: random.Random, marker: Path) -> None:
    """A value of a JSON file becomes another one."""
    path = place / rng.choice(("config.json", "config.json", *JSON))
    found = json.loads(path.read_text())
    inner = found
    while (nested := [v for v in inner.values() if isinstance(v, dict) and v]) and rng.random() < 0.4:
        inner = rng.choice(nested)
    inner[rng.choice((*inner, *(EXTRA if path.name == "config.json" else ())))] = rng.choice(VALUES)
    path.write_text(json.dumps(found))


def _lost_setting(place: Path, rng: random.Random, marker: Path) -> None:
    path = place / rng.choice(JSON)
    found = json.loads(path.read_text())
    found.pop(rng.choice(list(found)))
    path.write_text(json.dumps(found))


def _no_object(place: Path, rng: random.Random, marker: Path) -> None:
    text = rng.choice(("", "{", "[]", "null", "5", '"text"', "[" * 100_000, '{"a":' * 50_000, "\udcff{}", "9" * 5000))
    (place / rng.choice(JSON)).write_bytes(text.encode("utf-8", "surrogateescape"))


def _link(place: Path, rng: random.Random, marker: Path) -> None:
    """A file becomes a link to nowhere, to itself, to a device or a directory; or a pipe that nobody writes to."""
    path = place / rng.choice((*JSON, WEIGHTS))
    path.unlink()
    to = rng.choice(("nowhere", path.name, "/dev/zero", "/dev/null", ".", "pipe"))
    if to == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(to)


def _sparse(place: Path, rng: random.Random, marker: Path) -> None:
    with (place / rng.choice(JSON)).open("r+b") as file:
        file.truncate(2**34)


def _header(place: Path, rng: random.Random, marker: Path) -> None:
    """The header of the weights claims something else."""
    raw = (place / WEIGHTS).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    entry = header[rng.choice([name for name in header if name != "__metadata__"])]
    entry[rng.choice(list(entry))] = rng.choice(
        ([2**40, 2**40], [0], [-1], "F8_E4M3", "I64", [0, 2**62], [2**62, 0], "x", None)
    )
    made = json.dumps(header).encode()
    claimed = rng.choice((len(made), len(made), 2**40, 2**64 - 1, 0))
    (place / WEIGHTS).write_bytes(struct.pack("<Q", claimed) + made + raw[8 + size :])


def _tensors(place: Path, rng: random.Random, marker: Path) -> None:
    """Tensors that are missing, that nobody asked for, of another shape, or no numbers."""
    found = load_file(place / WEIGHTS)
    name = rng.choice(list(found))
    match rng.randrange(6):
        case 0:
            found.pop(name)
        case 1:
            found["model.layers.1.mlp.more_proj.weight"] = torch.zeros(2)
        case 2:
            found = {key.replace("layers.1.", "layers.7."): value for key, value in found.items()}
        case 3:
            found[name] = found[name][..., :-1].contiguous()
        case 4:
            found[name].view(-1)[rng.randrange(found[name].numel())] = rng.choice((float("nan"), float("-inf")))
        case 5:
            found = {}
    save_file(found, place / WEIGHTS, metadata={"format": "pt"})


def _layers(place: Path, rng: random.Random, marker: Path) -> None:
    """Fewer or more layers, tokens or positions than there are."""
    config = json.loads((place / "config.json").read_text())
    key = rng.choice(("num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "head_dim"))
    config[key] = rng.choice((1, 3, 2**20, 2**31 - 1))
    (place / "config.json").write_text(json.dumps(config))


def _pickled(place: Path, rng: random.Random, marker: Path) -> None:
    """Weights, their index or an adapter lead to a pickle that would run."""
    raw = pickle.dumps(Runs(marker))
    match rng.randrange(5):
        case 0:
            (place / WEIGHTS).unlink()
            (place / "pytorch_model.bin").write_bytes(raw)
        case 1:
            (place / WEIGHTS).write_bytes(raw)
        case 2:
            (place / WEIGHTS).rename(place / "weights.bin")
            (place / "weights.bin").write_bytes(raw)
            shards = {"weight_map": {"model.norm.weight": rng.choice(("weights.bin", "../evil.safetensors"))}}
            (place / "model.safetensors.index.json").write_text(json.dumps(shards))
        case 3:
            config = {"peft_type": "LORA", "base_model_name_or_path": str(place), "r": 1, "target_modules": ["q_proj"]}
            (place / "adapter_config.json").write_text(json.dumps(config))
            (place / "adapter_model.bin").write_bytes(raw)
        case 4:
            (place / WEIGHTS).unlink()
            (place / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "a.bin"}}')
            (place / "a.bin").write_bytes(raw)


def _code(place: Path, rng: random.Random, marker: Path) -> None:
    """Classes in the directory that would run as soon as they are imported."""
    (place / "own.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Own: ...\n")
    if rng.random() < 0.6:
        config = json.loads((place / "config.json").read_text())
        config["auto_map"] = rng.choice(
            ({"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}, "own.Own", ["own.Own"], {"AutoConfig": 5})
        )
        config["model_type"] = rng.choice(("own", "llama", None))
        (place / "config.json").write_text(json.dumps(config))
    else:
        path = place / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        settings["auto_map"] = rng.choice(({"AutoTokenizer": ["own.Own", "own.Own"]}, ["own.Own", None], "own.Own", 5))
        settings["tokenizer_class"] = rng.choice(("Own", "PreTrainedTokenizerFast"))
        path.write_text(json.dumps(settings))


def _quantised(place: Path, rng: random.Random, marker: Path) -> None:
    config = json.loads((place / "config.json").read_text())
    kinds = ({"quant_method": kind} for kind in ("gptq", "awq", "fp8", "compressed-tensors", "hqq", "mxfp4", "x" * 900))
    config["quantization_config"] = rng.choice((*kinds, {"load_in_4bit": True}, {"a": 1}, "gptq", 5, [1]))
    (place / "config.json").write_text(json.dumps(config))


MUTATIONS: tuple[Callable[[Path, random.Random, Path], None], ...] = (
    _setting, _flip, _tensors, _cut, _setting, _header, _code, _pickled, _setting, _link, _layers, _no_object,
    _lost_setting, _quantised, _sparse,
)  # fmt: skip
