"""How scores and fidelity look."""

import math
from collections.abc import Sequence

from rich.table import Table

from winnow.cli.terminal import new_table
from winnow.evaluation.accuracy import Accuracy
from winnow.evaluation.fidelity import Fidelity


def accuracy_table(accuracies: Sequence[Accuracy], depths: Sequence[float]) -> Table:
    """A row per plan, task and length; a column of loops where there are any."""
    loops = any(each.loop_rate for each in accuracies)
    about_loops = "loops: answers that repeat themselves up to their length limit" if loops else "no answer loops"
    caption = "score with its 95 % interval (Wilson) over n examples; by depth: needles found there, %; "
    table = new_table(None, caption + about_loops)
    table.add_column("plan", overflow="fold")
    table.add_column("task")
    headings = ["tokens", "score\n%", "95 %", "n", *(["loops\n%"] if loops else [])]
    for heading in (*headings, *(f"depth\n{depth:g}" for depth in sorted(depths))):
        table.add_column(heading, justify="right")
    for each in accuracies:
        found = {point.depth: f"{100 * point.found:.0f}" for point in each.by_depth}
        table.add_row(
            each.plan,
            each.task,
            f"{each.length:,}",
            f"{100 * each.score:.1f}",
            f"{100 * each.low:.0f} to {100 * each.high:.0f}",
            str(each.examples),
            *([f"{100 * each.loop_rate:.0f}"] if loops else []),
            *(found.get(depth, "-") for depth in sorted(depths)),
        )
    return table


def fidelity_table(found: Sequence[Fidelity]) -> Table:
    """A row per plan."""
    table = new_table(None, "means over the fed tokens; KL(full || plan) and NLL in nats per token")
    table.add_column("plan", overflow="fold")
    for heading in (
        "prompt",
        "fed",
        "KL",
        "top-1\n%",
        "NLL\nfull",
        "NLL\nplan",
        "perplexity\nfull",
        "perplexity\nplan",
    ):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(
            each.plan,
            f"{each.prompt_tokens:,}",
            f"{each.tokens:,}",
            f"{each.kl:.5f}",
            f"{100 * each.top1:.1f}",
            f"{each.nll_full:.4f}",
            f"{each.nll_plan:.4f}",
            f"{math.exp(each.nll_full):.3f}",
            f"{math.exp(each.nll_plan):.3f}",
        )
    return table
