"""What docs/fidelity.md says of SPEED's claims."""

from __future__ import annotations

from collections.abc import Iterable

from recipes.blocks.speed import mean
from recipes.blocks.tables import Block, Record, one, span

from . import claims

CUTOFFS = (8, 6, 4, 2)


def table(arms: list[Record], sweep: list[Record], ablations: list[Record], *timed: Record) -> str:
    """Claim by claim. timed: whole generations, decode steps, tokens per second of training."""
    return claims([*_quality(arms, sweep), *_parts(sweep, ablations), *_costs(*timed)])


def _quality(arms: list[Record], sweep: list[Record]) -> list[tuple[str, str, str]]:
    scores = {arm["arm"]: mean(arm, "score") for arm in arms}
    untrained = {cutoff: _swept(sweep, "post hoc", "bos", cutoff) for cutoff in (5, 4, 3, 2, 1)}
    lora = {cutoff: _swept(sweep, "lora", "bos", cutoff) for cutoff in range(1, 8)}
    trained = one(sweep, training="lora", anchors="bos", cutoff=6)["trained"]["result"]["steps"]
    whole = {cutoff: _swept(sweep, "full", "bos", cutoff) for cutoff in range(4, 8)}
    apart = max(abs(score - lora[cutoff]) for cutoff, score in whole.items())
    return [
        (
            "With prompts in three quarters of the layers and BoS as anchor, instruction tuning reaches 51.2 against "
            "51.4 at full depth (Table 2)",
            f"K = 6 of 8, 100 examples a task: LoRA {scores['LoRA, K = 6']:.1f} against "
            f"{scores['LoRA, full depth']:.1f} at full depth, all parameters {scores['all parameters, K = 6']:.1f} "
            f"against {scores['all parameters, full depth']:.1f}",
            "yes",
        ),
        (
            "It can be had by one epoch of LoRA on an off-the-shelf model (section 5.2)",
            f"as with all parameters where both were trained, K = 4 to 7, to {apart:.1f} points on 10 examples a task; "
            f"rank 16, {trained} steps",
            "yes",
        ),
        (
            "Smaller cutoffs degrade quality, by task (section 5.1)",
            f"not trained: {scores['not trained, K = 6']:.1f} at K = 6 (full: "
            f"{scores['not trained, full attention']:.1f}), {_listed(untrained.values(), '.1f')} at "
            f"{_listed(untrained, 'd')} (10 to 100 examples a task); several needles go first, key-value pairs last. "
            f"Trained with LoRA: {span((lora[cutoff] for cutoff in range(2, 8)), '.1f')} from K = 7 down to 2 (with "
            f"100 examples {scores['LoRA, K = 2']:.1f} at 2), {lora[1]:.0f} at 1",
            "yes untrained; trained, hardly: what `needle` needs of a prompt is found in layer 1",
        ),
    ]


def _parts(sweep: list[Record], ablations: list[Record]) -> list[tuple[str, str, str]]:
    plans = {each["plan"]: each for each in ablations}
    last, alone = (
        {cutoff: mean(plans[f"speed(cutoff={cutoff}, {changed})"], "score") for cutoff in cutoffs}
        for changed, cutoffs in (("anchors='bos+last:16'", (3, 5)), ("self_only=True", (6, 5, 3)))
    )
    whole = {cutoff: _swept(sweep, "post hoc", "bos", cutoff) for cutoff in alone}
    bare, anchored = (_swept(sweep, "full", anchors, 4) for anchors in ("none", "bos"))
    loops = {cutoff: _swept(sweep, "post hoc", "bos", cutoff, "loop_rate") for cutoff in (3, 5, 8)}
    trained = _swept(sweep, "lora", "bos", 3, "loop_rate")
    return [
        (
            "Without an anchor quality drops (49.1), BoS recovers it",
            f"no difference, trained or not, but at K = 4 with all parameters ({bare:.1f} against {anchored:.1f}, on "
            "10 examples a task)",
            "not shown on `needle`, which has no attention sink; on a pre-trained model "
            "[on text, yes](#speed-on-a-pre-trained-model)",
        ),
        (
            "-",
            "untrained, the last 16 prompt tokens as further anchors recover what is lost: "
            + ", ".join(f"{got:.1f} instead of {whole[cutoff]:.1f} at K = {cutoff}" for cutoff, got in last.items())
            + ". More tokens (64) add nothing, 64 random ones help less",
            "beyond the paper",
        ),
        (
            "Without BoS, answers end in repetition loops; BoS suppresses them (appendix G)",
            f"loops come with small cutoffs ({loops[3]:.0f} % of the answers at K = 3, {loops[5]:.0f} % at K = 5, "
            f"untrained; full attention {loops[8]:.0f} %) with the anchor as without; training removes them "
            f"({trained:.0f} % at K = 3)",
            "loops yes, BoS no",
        ),
        (
            "Seeing earlier decoded tokens above K is necessary: SelfOnly is clearly worse (appendix F)",
            "untrained: "
            + ", ".join(f"{got:.1f} instead of {whole[cutoff]:.1f} at K = {cutoff}" for cutoff, got in alone.items()),
            "yes",
        ),
    ]


def _costs(generation: Record, decode: Record, training: Record) -> list[tuple[str, str, str]]:
    by_name = {row["plan"].partition("(")[0]: row for row in generation["records"]}
    speed, pop, swiftkv = (by_name[name] for name in ("speed", "pop", "swiftkv"))
    full = generation["records"][0]["stats"]
    steps = {row["arm"].partition("(")[0]: row for row in decode["records"] if row["length"] == 32768}
    rates = [sorted(training["tokens_per_second"][str(cutoff)])[1] for cutoff in CUTOFFS]  # the medians of three
    bytes_read = steps["speed"]["read_bytes"] / steps["full"]["read_bytes"]
    return [
        (
            "TTFT improves by 33 % at 128K, L/K of the layer-tokens (figures of section 5.1)",
            f"at {generation['length']:,} tokens, K = 21 of 28: {speed['ttft_ratio']:.3f} of full attention's time, so "
            f"{100 / speed['ttft_ratio'] - 100:.0f} % faster; "
            f"{100 * speed['stats']['rows_computed'] / full['rows_computed']:.1f} % of the rows",
            "yes",
        ),
        (
            "TPOT improves by 22 % at 128K",
            f"at 32,768 cached tokens {steps['speed']['ratio_to_full']:.3f} of full attention's step, "
            f"{100 / steps['speed']['ratio_to_full'] - 100:.0f} % faster, the median of "
            f"{len(steps['speed']['seconds'])} pairs; of medians "
            f"{steps['speed']['median_s'] / steps['full']['median_s']:.3f}; the bytes to read are {bytes_read:.3f} of "
            "full attention's",
            "yes, as far as such turns tell",
        ),
        (
            "Active KV memory falls by 25.0 %",
            f"{_cache(speed, full):.4f} of full attention's bytes at {generation['length']:,} tokens, the formula's "
            "figure exactly",
            "yes",
        ),
        (
            "POP and SwiftKV at the same K have a similar TTFT, no better TPOT, and more KV (figure 2)",
            f"TTFT {pop['ttft_ratio']:.3f} and {swiftkv['ttft_ratio']:.3f} of full attention's; TPOT at 32,768 "
            f"{steps['pop']['ratio_to_full']:.3f} and {steps['swiftkv']['ratio_to_full']:.3f}; cache "
            f"{_cache(pop, full):.3f} and {_cache(swiftkv, full):.3f} (SwiftKV with pairs of layers sharing)",
            "yes",
        ),
        (
            "Diagnostics point at the cutoff (section 5.3)",
            "`winnow diagnose` recommends three quarters of the layers; the untrained score is full attention's there "
            "and falls below. Trained, the knee is at 2, where the rules for single layers and for curvature settle "
            "([diagnose.md](diagnose.md))",
            "on the model that the thresholds were set on, as it is; on others not measured",
        ),
        (
            "Training costs less than at full depth (appendix I)",
            f"{_listed(rates, ',.0f')} tokens/s at K = {_listed(CUTOFFS, 'd')}",
            f"yes: {rates[1] / rates[0]:.2f}x at K = 6",
        ),
    ]


def _swept(sweep: list[Record], training: str, anchors: str, cutoff: int, name: str = "mean") -> float:
    """A figure of an arm, in percent: its mean score."""
    return 100 * float(one(sweep, training=training, anchors=anchors, cutoff=cutoff)[name])


def _cache(row: Record, full: Record) -> float:
    return float(row["stats"]["cache_bytes"] / full["cache_bytes"])


def _listed(values: Iterable[float], shown: str) -> str:
    return ", ".join(f"{value:{shown}}" for value in values)


FILES = ("accuracy", "sweep", "ablations", "generation", "decode", "training")
BLOCKS = {"claims-speed": Block(table, tuple(f"speed-{name}.json" for name in FILES))}
