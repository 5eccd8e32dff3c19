"""Figures of docs/diagnose.md: where `needle` reads its prompt, and how steady what it attends to is."""

from __future__ import annotations

from math import exp
from statistics import mean
from typing import Any

from .tables import Block, Column, Columns, Record, one, percent, span, table

SHOWN = 16  # ages of a selection: a sentence of its answers takes 15 tokens
RULES = {
    "tail share": "selective mass of the layers from the cutoff on, of all layers'",
    "layer mass": "the most selective mass of one of them",
    "prompt curvature": "how far its values in them lie apart",
    "decode curvature": "the same at decode positions",
}
LAYERS: Columns = {
    "layer": lambda row: str(row["layer"]),
    "prompt, %": percent("prompt"),
    "BoS, %": percent("bos"),
    "decode, %": percent("decode"),
    "self, %": percent("itself"),
    "H, nats": lambda row: f"{row['entropy']:.2f}",
    "H/ln n, %": percent("evenness"),
    "selective, %": percent("selective"),
    "curvature, prompt": lambda row: f"{row['turns']['prompt']:.1f}",
    "curvature, decode": lambda row: f"{row['turns']['decode']:.1f}",
    "straighter by, prompt": lambda row: f"{row['turns']['prompt_straightening']:.1f}",
    "straighter by, decode": lambda row: f"{row['turns']['decode_straightening']:.1f}",
}


def layers(document: Record) -> str:
    """A row per layer, and what leaves the last one in a sentence."""
    rows = [layer | {"turns": turns} for layer, turns in zip(document["layers"], document["trajectory"], strict=False)]
    out = document["trajectory"][-1]
    return (
        f"{document['model']}: {document['prompts']} prompts, {document['steps']:,} decode steps, full attention.\n\n"
        f"{table(LAYERS, rows)}\n\n"
        f"What leaves the last layer turns by {out['prompt']:.1f} degrees at prompt positions and by "
        f"{out['decode']:.1f} at decode positions."
    )


def cutoff(document: Record) -> str:
    """The recommended cutoff and the rules behind it, the most demanding first."""
    found = document["cutoff"]
    columns: Columns = {
        "rule": lambda rule: f"{rule['name']}: {RULES[rule['name']]}",
        "alone allows": lambda rule: str(rule["smallest"]),
        "at most": lambda rule: _value(rule, rule["threshold"]),
        **{f"K = {place}": _at(place) for place in range(1, found["layers"])},
    }
    return (
        f"Recommended: K = {found['layer']} of {found['layers']} layers, as in `speed(cutoff={found['layer']})`; the "
        f"prompt's mass in the layers from there on is {100 * found['mass_above']:.0f} % of all layers'.\n\n"
        f"{table(columns, found['rules'])}"
    )


def _at(place: int) -> Column:
    return lambda rule: _value(rule, rule["values"][place])


def _value(rule: Record, value: float) -> str:
    return f"{100 * value:.1f} %" if rule["unit"] == "share" else f"{value:.1f}°"


def told(document: Record) -> str:
    """What the tables say."""
    finds = max(document["layers"], key=lambda row: row["selective"])
    found = document["cutoff"]
    tail = one(found["rules"], name="tail share")["values"]
    return (
        f"Layer {finds['layer']} finds: {100 * finds['prompt']:.0f} % of its attention is on the prompt, at the "
        f"entropy of about {exp(finds['entropy']):.0f} tokens. Everything above it reads widely. The tail share "
        f"decides: K = {found['layer']} as long as its threshold lies between {100 * tail[found['layer']]:.1f} and "
        f"{100 * tail[found['layer'] - 1]:.1f} %."
    )


def mass(document: Record) -> str:
    """Why mass alone would not do."""
    last = document["layers"][-2:]
    return (
        f"Mass alone would not do here: `needle` keeps {span((100 * row['prompt'] for row in last), '.0f')} % of its "
        "attention on the prompt in the last two layers, spread over a hundred tokens and more, and its scores hardly "
        "change when these layers no longer see the prompt (below)."
    )


def support(document: Record) -> str:
    """How steady the support is, and what a selection catches of it by its age."""
    rows, ages = document["layers"], document["ages"]
    inside, first = (
        {name: share_of(row[f"{name}_{where}"] for row in rows) for name in ("overlap", "recall")}
        for where in ("inside", "boundary")
    )
    heads = [100 * head for row in rows for head in row["overlap_inside"]]
    since = [share_of(age["recall"]) for age in ages]
    return (
        f"| | overlap, % | recall, % |\n| --- | ---: | ---: |\n"
        f"| inside sentences | {inside['overlap']:.0f} | {inside['recall']:.0f} |\n"
        f"| at first tokens ({document['boundaries']} of {document['steps']} steps) | {first['overlap']:.0f} "
        f"| {first['recall']:.0f} |\n\n"
        f"Means over layers and heads. The paper's picture of a support that hardly moves inside a sentence is not "
        f"`needle`'s: from one step to the next {inside['overlap']:.0f} % of the {document['policy']['budget']} most "
        f"attended units stay ({span(heads, '.0f')} % by head). What a selection catches changes less: {since[0]:.0f} "
        f"% of the attention when it is made, {span(since[1:], '.0f')} % from then on, where as many units could catch "
        f"{span((share_of(age['best']) for age in ages), '.0f')} %.\n\n{_by_age(ages)}"
    )


def _by_age(ages: list[Record]) -> str:
    """Recall by the age of the selection, of all layers and of the one that finds."""
    columns: Columns = {
        "steps since the selection": lambda age: str(age["distance"]),
        "overlap with the refresh's, %": lambda age: f"{share_of(age['overlap']):.0f}",
        "recall, %": lambda age: f"{share_of(age['recall']):.0f}",
        "best, %": lambda age: f"{share_of(age['best']):.0f}",
        "recall in layer 1, %": lambda age: f"{share_of([age['recall'][1]]):.0f}",
        "best in layer 1, %": lambda age: f"{share_of([age['best'][1]]):.0f}",
    }
    return table(columns, ages[:SHOWN])


def share_of(heads: Any) -> float:
    """[layers][kv_heads] shares -> their mean in percent."""
    return 100 * mean(head for layer in heads for head in layer if head is not None)


def needles(told: Record) -> str:
    """A row per layer."""
    columns: dict[str, Column] = {"layer": lambda row: str(row["layer"])}
    for vote in told["layers"][0]:
        columns[f"{vote}, median, %"] = lambda row, vote=vote: f"{100 * row[vote]['median']:.1f}"
        columns[f"{vote}, in 90 %"] = lambda row, vote=vote: f"{100 * row[vote]['most']:.1f}"
    columns["repeated, %"] = lambda row: f"{100 * row['repeated']:.1f}"
    rows = [
        {"layer": layer, **shares, "repeated": told["repeated"][layer]}
        for layer, shares in enumerate(told["layers"])
        if shares is not None
    ]
    first, ranks = told["first"], told["ranks"]
    found = "None is enough" if first is None else f"Layer {first['layer']} is the first, by `{first['votes']}`"
    return (
        f"{table(columns, rows)}\n\n{told['model']}, {told['prompts']} prompts of {told['length']:,} tokens, "
        f"{ranks['voters']} voters, pooled over {ranks['kernel']}, at most {ranks['before']} before what is found: "
        f"% of the tokens. {found}. Repeated: % of the attention, of the best head, that random tokens which come "
        f"again pay to where they stood first. Layer {told['finds']} is the first that finds these."
    )


BLOCKS = {
    "diagnose-needles": Block(needles, ("needles-smollm2.json",)),
    "diagnose-needles-other": Block(needles, ("needles-other.json",)),
    "diagnose-layers": Block(layers, ("speed-diagnose.json",)),
    "diagnose-cutoff": Block(cutoff, ("speed-diagnose.json",)),
    "diagnose-told": Block(told, ("speed-diagnose.json",)),
    "diagnose-mass": Block(mass, ("speed-diagnose.json",)),
    "diagnose-support": Block(support, ("support.json",)),
}
