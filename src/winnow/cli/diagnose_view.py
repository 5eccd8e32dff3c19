"""How a diagnosis of the layers looks."""

from rich.console import Group, RenderableType
from rich.table import Table

from winnow.cli.terminal import new_table
from winnow.diagnosis.cutoff import Cutoff, Rule
from winnow.diagnosis.diagnose import Diagnosis

CAPTION = (
    "attention of decode steps, mean over heads: on the prompt, on position 0 (BoS), on earlier tokens of the decode "
    "phase, on the token itself; H: entropy within the prompt's n tokens; selective: mass x (1 - H / ln n); "
    "curvature: degrees that the hidden states entering a layer turn per token"
)
NOT_CAUSAL = "A description of what the model does, not a proof of what it needs: measure a cutoff with `winnow eval`."
RULES = {
    "tail share": "selective mass of the layers from the cutoff on, of all layers'",
    "layer mass": "the most selective mass of one of them",
    "prompt curvature": "how far its values in them lie apart",
    "decode curvature": "the same at decode positions",
}
LEAST_SHOWN = 0.0005  # a column of shares that are all smaller is left out


def diagnosis_view(found: Diagnosis, model: str) -> RenderableType:
    """The table of layers, the recommended cutoff, and the rules behind it."""
    title = f"{model}: {found.prompts} prompts, {found.steps:,} decode steps, full attention"
    return Group(title, "", layer_table(found), CAPTION, "", recommendation(found.cutoff), "", rule_table(found.cutoff))


def layer_table(found: Diagnosis) -> Table:
    """A row per layer, and one for the states that leave the last; a line where the recommended cutoff is."""
    sinks, skipped = (any(getattr(each, name) >= LEAST_SHOWN for each in found.layers) for name in ("sinks", "skipped"))
    headings = ["layer", "prompt\n%", "BoS\n%", "decode\n%", "self\n%", *(["sinks\n%"] if sinks else [])]
    headings += ["H\nnats", "H/ln n\n%", "selec-\ntive %", *(["skipped\n%"] if skipped else [])]
    headings += ["curvature\nprompt", "\ndecode", "straighter\nprompt", "by\ndecode"]
    table = new_table(None)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for each, point in zip((*found.layers, None), found.trajectory, strict=True):
        cells = [str(point.layer) if each else "out"]
        if each is None:
            cells += [""] * (len(headings) - 5)
        else:
            masses = [each.prompt, each.bos, each.decode, each.itself, *([each.sinks] if sinks else [])]
            cells += [*map(_percent, masses), _figure(each.entropy, 2)]
            cells += [*map(_percent, (each.evenness, each.selective, *([each.skipped] if skipped else [])))]
        turns = (point.prompt, point.decode, point.prompt_straightening, point.decode_straightening)
        table.add_row(*cells, *(_figure(turn, 1) for turn in turns), end_section=point.layer == found.cutoff.layer - 1)
    return table


def recommendation(cutoff: Cutoff) -> str:
    """What to try, and why not less; two or three lines."""
    first, second = cutoff.rules[:2]
    if cutoff.layer == cutoff.layers:
        head = f"recommended cutoff: none (all {cutoff.layers} layers), because no lower one is allowed"
    else:
        above = f"layers {cutoff.layer} to {cutoff.layers - 1}"
        head = (
            f"recommended cutoff: {cutoff.layer} of {cutoff.layers} layers, as in speed(cutoff={cutoff.layer}); the "
            f"prompt's mass in {above} is {100 * cutoff.mass_above:.0f} % of all layers'"
        )
    why = (
        f"decided by {first.name}: at {cutoff.layer - 1} it is {value_at(first, cutoff.layer - 1)}, above "
        f"{_value(first, first.threshold)}; runner-up: {second.name}, which alone allows {second.smallest}"
    )
    return "\n".join((head, why, NOT_CAUSAL) if cutoff.layer > 1 else (head, NOT_CAUSAL))


def rule_table(cutoff: Cutoff) -> Table:
    """A row per rule, the most demanding first."""
    table = new_table(None)
    table.add_column("rule")
    lower = [cutoff.layer - 1] if cutoff.layer > 1 else []
    for heading in ("alone\nallows", "at\nmost", *(f"cutoff\n{place}" for place in (cutoff.layer, *lower))):
        table.add_column(heading, justify="right", no_wrap=True)
    for rule in cutoff.rules:
        places = (value_at(rule, place) for place in (cutoff.layer, *lower))
        table.add_row(f"{rule.name}: {RULES[rule.name]}", str(rule.smallest), _value(rule, rule.threshold), *places)
    return table


def value_at(rule: Rule, cutoff: int) -> str:
    return _value(rule, rule.values[cutoff])


def _value(rule: Rule, value: float) -> str:
    return f"{100 * value:.1f} %" if rule.unit == "share" else f"{value:.1f}°"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
