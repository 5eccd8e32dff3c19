"""What a training run of retaining heads leaves behind."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import torch

from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.parts import LIBRARIES, Card, leave
from winnow.learn.run import Report
from winnow.learn.saving import metadata
from winnow.plan import Plan
from winnow.policies.keep.base import KeepPolicy
from winnow.policies.keep.kvzap import KVzap
from winnow.policies.keep.locret import Locret
from winnow.runtime.heads import HeadsConfig, RetainingHeads, Target


class Use(NamedTuple):
    """What heads are for. keep: the policy that they were made for; plan: one of it; say: what they say of a token."""

    keep: KeepPolicy
    plan: str
    say: str


USES: dict[Target, Use] = {
    "logit": Use(
        Locret(),
        "locret(budget=1024)",
        "how much later ones will attend to it, so that a cache of fixed size\n"
        "can keep what matters (Locret, arXiv:2410.01805)",
    ),
    "repeat": Use(
        KVzap(),
        "kvzap(threshold=-6)",
        "how much the model would need it to repeat the text, so that a cache\n"
        "can keep what matters (KVzap, arXiv:2601.07891)",
    ),
}


def record_of(config: HeadsConfig, recipe: HeadsRecipe, data: dict[str, Any]) -> dict[str, Any]:
    """The record in `winnow.json`, without a result: the run goes on."""
    base = {"name": config.base, "fingerprint": config.fingerprint}
    return metadata(Plan(keep=USES[config.target].keep), config.layers, base, recipe, data, libraries=LIBRARIES)


def save_heads(out: Path, heads: RetainingHeads, record: dict[str, Any], dtype: torch.dtype) -> Report:
    """Write the heads, in `dtype`, and what says how they were made."""
    done = {name: record[name] for name in ("recipe", "data", "result")}
    config, use = dataclasses.replace(heads.config, **done), USES[heads.config.target]
    RetainingHeads(config, heads.first, heads.second).to(torch.device("cpu"), dtype).save(out)
    card = Card(
        title="Retaining heads",
        tag=use.keep.name,
        about=f"Small networks, one per layer, that say of every token {use.say}",
        argument="heads",
        shape=f"{config.layers} layers, {config.inputs} -> {config.width} -> {config.kv_heads}, {config.activation}",
        figures={"overlap of the best tenth, last": f"{record['result']['overlap_last']:.1%}"},
        plan=use.plan,
    )
    return leave(out, record, card)
