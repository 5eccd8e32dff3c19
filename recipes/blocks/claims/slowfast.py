"""What docs/fidelity.md says of Slow-Fast Inference's claims."""

from __future__ import annotations

from recipes.blocks.diagnose import share_of
from recipes.blocks.slowfast import CODES, OFTEN, PAIRS, RARELY, compared, listing
from recipes.blocks.tables import Block, Record, one, span
from recipes.slowfast.figures import score

from . import claims

SHORT, LONG = 4096, 8192
AUTHORS = "alpha_fair, 1/16"
TRIGGERS = (RARELY, "periodic, rarely", "random, rarely", "none")


def table(records: list[Record], runs: dict[str, Record], support: Record) -> str:
    """Claim by claim."""
    return claims([*_times(runs), *_quality(records, support)])


def _times(runs: dict[str, Record]) -> list[tuple[str, str, str]]:
    timed = {
        (name, row["length"], row["batch"], row["plan"].partition("(")[0]): row
        for name, run in runs.items()
        for row in run["records"]
    }
    one_at = {
        length: [timed[run, length, 1, "slowfast"] for run in measured]
        for length, measured in ((8192, "ab"), (32768, "ac"), (65536, "b"))
    }
    ratios = ", ".join(
        f"{' and '.join(format(row['ratio_to_full'], '.2f') for row in found)} at {length:,}"
        for length, found in one_at.items()
    )
    stock, longest = one_at[32768][0], one_at[65536][0]
    full, four = timed["b", 65536, 1, "full"], [timed["c", 32768, 4, plan] for plan in ("slowfast", "full")]
    fast = [row["fast"] for row in timed.values() if row["fast"]]
    slow = [row["slow"]["gb_s"] for row in timed.values() if row["plan"] == "full"]
    return [
        (
            "Decoding is 1.6 to 14.4 times faster, more so with longer contexts (abstract; 14.4 at 128K tokens, "
            "Qwen3-4B)",
            f"TPOT {ratios} tokens, of full attention's, a figure for each run; {stock['ratio_to_stock']:.3f} of stock "
            f"transformers' at {stock['length']:,}. From {timed['b', 8192, 1, 'full']['length']:,} to "
            f"{full['length']:,} tokens it grows by {longest['growth']:.2f}, full attention's by {full['growth']:.2f}",
            "yes, with `peaks`; the authors' Selector was not timed. A 0.6B model's weights are most of what a fast "
            "step reads",
        ),
        (
            "Contiguous copies are read at high bandwidth (Figure 3)",
            f"a fast step moves its bytes, weights included, at {span((each['gb_s'] for each in fast), '.0f')} GB/s: "
            f"{span((100 * each['share_of_copy'] for each in fast), '.0f')} % of the copy rate that the same run "
            f"measured, which is itself {span((run['rates']['copy_gb_s'] for run in runs.values()), '.0f')} "
            f"GB/s on this machine from minute to minute. Full attention's steps reach {span(slow, '.0f')}",
            "partly",
        ),
        (
            "Several requests share the weights' bytes (Figure 4: batches)",
            f"four sequences of {four[0]['length']:,} tokens yield {four[0]['tokens_of_one']:.2f} times the tokens/s "
            f"of one, full attention {four[1]['tokens_of_one']:.2f} times; medians of ratios within run c, "
            f"whose turns give {' and '.join(span(_gains(runs['c'], row), '.2f') for row in four)}",
            "yes",
        ),
    ]


def _gains(run: Record, batch: Record) -> list[float]:
    """A batch's tokens/s over those of a single sequence under the same plan, turn by turn."""
    [single] = [row for row in run["records"] if row["plan"] == batch["plan"] and row["batch"] == 1]
    turns = zip(single["steps"], batch["steps"], strict=True)
    return [batch["batch"] * _per_step(alone) / _per_step(together) for alone, together in turns]


def _per_step(turn: list[list[float]]) -> float:
    return sum(step[0] for step in turn) / len(turn)


def _quality(records: list[Record], support: Record) -> list[tuple[str, str, str]]:
    def scores(arm: str, length: int = SHORT) -> str:
        codes, pairs = (compared(*listing(records, arm, task, length)) for task in (CODES, PAIRS))
        return f"codes {codes}, pairs {pairs} at {length:,}"

    def alone(arm: str, task: str) -> str:
        return f"{score(one(records, arm=arm, task=task, length=SHORT)):.1f}"

    inside = share_of(layer["overlap_inside"] for layer in support["layers"])
    return [
        (
            "Within a sentence the support hardly moves (Figures 1 and 2)",
            f"not on `needle`: {100 - inside:.0f} % of the {support['policy']['budget']} most attended units change "
            "from one step to the next, inside sentences nearly as at their starts "
            "([diagnose.md](diagnose.md#the-support-of-needle))",
            "no",
        ),
        (
            "Quality on par with full attention (LongBench, 41.40 against 43.19 and the like)",
            f"slow steps at least every four and `peaks`: {scores(OFTEN)}, {scores(OFTEN, LONG)} tokens. In the "
            f"authors' rhythm (`interval=96, min_gap=16`), with `peaks` too: {scores(RARELY)}",
            "with frequent slow steps nearly: pairs yes, codes a little less; in the authors' rhythm no",
        ),
        (
            "The Selector chooses what the next segment needs",
            f"`alpha_fair` scores {alone(f'{AUTHORS}, often', CODES)} and {alone(f'{AUTHORS}, often', PAIRS)} with "
            f"slow steps every four, {alone(f'{AUTHORS}, rarely', CODES)} and {alone(f'{AUTHORS}, rarely', PAIRS)} in "
            "the authors' rhythm: its suppression of neighbours takes away what an answer that is copied reads next. "
            "Its budgets in the paper are thousands of units, and 16 prompt rows select, where 128 do here",
            "no, at these budgets and tasks; for the authors' bootstrap, trigger and budget see "
            "[below](#slow-fast-inference-on-a-pre-trained-model)",
        ),
        (
            "Sentence starts are the time to select",
            "in the authors' rhythm sentence starts, as many periodic or random steps, and none at all: "
            f"{', '.join(alone(arm, CODES) for arm in TRIGGERS)} on codes. What is selected by the prompt's last rows "
            "does all the work there",
            "not seen on `needle`",
        ),
    ]


BLOCKS = {"claims-slowfast": Block(table, ("slowfast.json", "slowfast-decoding.json", "support.json"))}
