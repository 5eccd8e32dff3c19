"""Figures of docs/results/trained.md: how SmolLM2's parts were trained."""

from __future__ import annotations

from collections.abc import Sequence

from .quality import by_arm, compared, final, marked, measured, points
from .tables import Block, Columns, Record, code, count, key, mib, percent, ranged, table

COLUMNS: Columns = {
    "part": lambda record: f"`{record['part']}`",
    "steps": count("steps"),
    "tokens": count("tokens"),
    "time, s": count("seconds"),
    "memory, MiB": mib("peak_bytes", 0),
    "held out, before": key("before"),
    "held out, after": key("after"),
}
FIGURES = {"loss": "loss", "overlap": "overlap", "distance": "distance"}  # of what is held out


def markdown(records: list[Record]) -> str:
    """A row per part: what its training took, and what it makes of texts that it did not learn from."""
    rows = [{**record["result"], "part": record["part"], **_held_out(record)} for record in records]
    return table(COLUMNS, rows) + "\n"


def _held_out(record: Record) -> Record:
    told = [line["held_out"] for line in record["log"] if "held_out" in line and line["step"] == 0]
    # Without a teacher a KL is from the model before, and grows.
    names = FIGURES | ({"kl": "KL"} if record.get("teacher") else {})
    before = _figures(told[0], names) if told else ""
    return {"before": before, "after": _figures(record["result"]["held_out"], names)}


def _figures(held_out: Record, names: dict[str, str]) -> str:
    return ", ".join(f"{name} {held_out[key]:.3f}" for key, name in names.items() if key in held_out)


def said(records: list[Record]) -> str:
    """What the anchor and the cutoff are worth in training."""
    adapters = [record for record in records if "kl" in record["result"]["held_out"]]
    after = {record["part"]: record["result"]["held_out"]["loss"] for record in adapters}
    before = {record["part"]: record["log"][0]["held_out"]["loss"] for record in adapters}

    def lost(part: str) -> str:
        return f"{after[part] - after['long']:.2f} (untrained {before[part] - before['long']:.2f})"

    return (
        "Without the first token's units above the cutoff the loss begins higher and ends higher, at both cutoffs, in "
        "one run each. At its end it is above the control's by this: at three quarters of the layers "
        f"{lost('speed-23')}, without the anchor {lost('speed-23-none')}; at half {lost('speed-15')}, without it "
        f"{lost('speed-15-none')}."
    )


TRAINED = ("quality-trained-speed.json", "quality-trained-control.json")
CONTROL, ANCHORED = "full, smollm2-long", "speed(3/4), smollm2-speed-23"
NONE, HALF = "speed(3/4, anchors='none'), speed-23-none", "speed(1/2), speed-15"
TAUGHT = ("quality-taught.json", "quality-taught-compared.json")
MORE = ("quality-taught-more.json", "quality-taught-more-compared.json", "quality-taught-more-unseen.json")
WITH_END = "speed(3/4, decode_from='last:256')"
WITH_END_TRAINED, WITH_END_TAUGHT = f"{WITH_END}, smollm2-speed-23", f"{WITH_END}, speed-23-taught"


def beside_control(told: Record, control: Record, arms: Sequence[str] = (ANCHORED, NONE, HALF)) -> dict[str, str]:
    """What is said of arms and of the control. told: points from full attention; control: from the control."""
    windows, scores = by_arm(told["windows"], "domain"), by_arm(control["scores"], "task")
    before = by_arm(told["scores"], "task")
    paired = by_arm(control["windows"], "domain")
    own = windows[CONTROL]["kl"]["mean"]

    def text(arm: str) -> str:
        kl, ratio = windows[arm]["kl"], windows[arm]["ratio"]
        less, beside = ranged(paired[arm]["difference"], 3, sign="+"), ranged(paired[arm]["ratio_against"], 3)
        own_kl, own_ratio = "", ""
        if arm != CONTROL:
            own_kl = f", {kl['mean'] / own:.1f} times the control's (in pairs {less})"
            own_ratio = f" and {beside} times the control's"
        return f"KL {ranged(kl, 3)}{own_kl}, perplexity {ranged(ratio, 2)} times that of the model as it was{own_ratio}"

    def from_before(arm: str) -> str:
        return f"{points(before[arm])} points from the model as it was; {text(arm)}"

    beside = {arm: f"{points(scores[arm])} points from the control, {from_before(arm)}" for arm in arms}
    return beside | {CONTROL: from_before(CONTROL)}


def trained_speed(told: Record, control: Record) -> str:
    """A line per arm."""
    named = {"Three quarters of the layers": ANCHORED, "Without the anchor": NONE, "Half": HALF, "The control": CONTROL}
    return _lines(named, beside_control(told, control))


def taught(told: Record, control: Record) -> str:
    """A line per arm, where the end of a prompt goes through all layers."""
    trained = {"Trained": WITH_END_TRAINED, "Before the last eight steps": WITH_END_TAUGHT, "Untrained": WITH_END}
    return _lines(trained | {"The control": CONTROL}, beside_control(told, control, tuple(trained.values())))


def taught_more(told: Record, control: Record, unseen: Record) -> str:
    """The same of more questions and windows, with each task and what no arm of SPEED had been asked before apart."""
    beside = beside_control(told, control, (WITH_END_TRAINED,))
    new = by_arm(unseen["scores"], "task")[WITH_END_TRAINED]
    rows = [row for row in control["scores"] if row["arm"] == WITH_END_TRAINED and row["task"] != "all"]
    apart = {
        f"Of the {new['different']} questions that no arm of SPEED had been asked before": "new",
        "By task": "tasks",
    }
    beside["new"] = f"{points(new)} points from the control"
    beside["tasks"] = ", ".join(f"`{row['task']}` {marked(row)}" for row in rows)
    return _lines({"Trained": WITH_END_TRAINED, **apart, "The control": CONTROL}, beside)


def _lines(named: dict[str, str], beside: dict[str, str]) -> str:
    return "\n".join(f"- {what}: {beside[arm]}." for what, arm in named.items())


TIMES: Columns = {
    "plan": code("plan"),
    "adapter": lambda row: f"`{row['adapter']}`" if row["adapter"] else "none",
    "TTFT, s": lambda row: f"{row['ttft_s']['median']:.1f}",
    "TTFT of full's": lambda row: f"{row['ratios']['ttft']:.2f}",
    "TPOT, ms": lambda row: f"{1000 * row['tpot_s']['median']:.1f}",
    "TPOT of full's": lambda row: f"{row['ratios']['tpot']:.2f}",
    "rows, %": percent("rows_share"),
    "bytes, MiB": mib("total_bytes", 1),
}


def times(adapted: Record, without: Record) -> str:
    """Seconds of a prompt and of a token, in one run each with the adapter and without."""
    rows = [{**row, "adapter": told["adapter"]} for told in (adapted, without) for row in told["summary"]]
    about = f"{adapted['summary'][0]['examples']} prompts of {adapted['summary'][0]['length']:,} tokens, medians"
    return f"{table(TIMES, rows)}\n\n{about}, {adapted['threads']} threads; full's: in the same run."


BLOCKS = {
    "trained-speed-times": Block(times, ("trained-speed-times.json", "trained-speed-times-without.json")),
    "quality-trained-speed-said": Block(trained_speed, TRAINED),
    "quality-taught-said": Block(taught, TAUGHT),
    "quality-taught": Block(final, TAUGHT[:1]),
    "quality-taught-more-said": Block(taught_more, MORE),
    "quality-taught-more": Block(final, MORE[:1]),
    "smollm2-training-said": Block(said, ("smollm2-training.json",)),
    "smollm2-training": Block(markdown, ("smollm2-training.json",)),
    "quality-trained-speed": Block(final, ("quality-trained-speed.json",)),
    "quality-composed-settings": Block(measured, ("quality-composed-settings.json",)),
    "quality-composed-apart": Block(final, ("quality-composed-apart.json",)),
    "quality-composed": Block(final, ("quality-composed.json",)),
    "quality-trained-long": Block(final, ("quality-trained-long.json",)),
    "quality-locret-settings": Block(final, ("quality-locret-settings.json",)),
    "quality-evict-settings": Block(final, ("quality-evict-settings.json",)),
    "quality-evict": Block(final, ("quality-evict.json",)),
    "quality-evict-compared": Block(compared, ("quality-evict-compared.json",)),
    "quality-evict-16-settings": Block(final, ("quality-evict-16-settings.json",)),
    "quality-evict-16": Block(final, ("quality-evict-16.json",)),
    "quality-evict-16-compared": Block(compared, ("quality-evict-16-compared.json",)),
    "quality-locret-curves": Block(final, ("quality-locret-curves.json",)),
    "quality-kvzap": Block(final, ("quality-kvzap.json",)),
    "quality-kvzap-test": Block(final, ("quality-kvzap-test.json",)),
    "quality-kvzap-near": Block(measured, ("quality-kvzap-near.json",)),
}
