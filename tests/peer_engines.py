"""Engines of peers for tests: where their Pythons are, and one loaded in this process."""

import os

import pytest
import torch

from winnow.evaluation.peers.registry import parse_pythons

# Where peers are, as for --peer-python: WINNOW_TEST_PEERS="kvpress=PATH llama.cpp=PATH"
PYTHONS = parse_pythons(os.environ.get("WINNOW_TEST_PEERS", "").split())
IDS = [5 + place * 37 % 200 for place in range(60)]


def needs(family: str, package: str) -> pytest.MarkDecorator:
    way_out = f"pip install {package} into an environment and set WINNOW_TEST_PEERS={family}=DIR/bin/python"
    return pytest.mark.skipif(family not in PYTHONS, reason=f"{family} is not named: {way_out}")


needs_llama, needs_kvpress = needs("llama.cpp", "llama-cpp-python"), needs("kvpress", "kvpress")


def engine(made, directory, **options):
    """`made`, with the model of a directory, in float32."""
    made.check(threads=torch.get_num_threads(), device="cpu", **options)
    made.load(model=str(directory), dtype="float32", context=128)
    return made
