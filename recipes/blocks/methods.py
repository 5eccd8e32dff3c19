"""What the README says of the four papers' methods on a pre-trained model: a row each, of the widest run there is."""

from __future__ import annotations

from .quality import by_arm, points
from .smollm2 import CONTROL, WITH_END_TRAINED
from .tables import Block, Column, Record, code, number, ranged, span, table

LATER = "quality-final-later.json"
# Of each method its page, its plan, and the file of its run; SPEED's points are from a control, in a file of their own.
METHODS = (
    ("LazyLLM", "lazyllm", "lazyllm", "quality-final.json"),
    ("SPEED", "speed", WITH_END_TRAINED, "quality-taught-more.json"),
    ("Locret", "locret", "locret(budget={3/16}, chunk=128, by_head='adaptive')", LATER),
    ("Slow-Fast", "slowfast", "slowfast(budget={1/16}, recent=192, min_gap=32)", LATER),
)
FILES = tuple(dict.fromkeys(file for *_, file in METHODS))
CONTROLLED = "quality-taught-more-compared.json"


def methods(*told: Record) -> str:
    """Answers, distance in text, and counts of a plan of each paper. told: of FILES, then of CONTROLLED."""
    runs = dict(zip(FILES, told, strict=False))
    rows = []
    for method, page, arm, file in METHODS:
        scores, windows = by_arm(runs[file]["scores"], "task"), by_arm(runs[file]["windows"], "domain")
        beside = by_arm(told[-1]["scores"], "task") if arm == WITH_END_TRAINED else scores
        rows.append({
            "method": f"[{method}](docs/results/{page}.md)", "arm": arm, "full": scores["full"]["score"],
            "answers": scores[arm], "beside": beside[arm], "window": windows[arm],
        })  # fmt: skip
    columns: dict[str, Column] = {
        "method": lambda row: str(row["method"]),
        "plan": code("arm"),
        "tokens": lambda row: f"{row['answers']['length']:,}",
        "questions": lambda row: str(row["answers"]["questions"]),
        "right, %": lambda row: f"{100 * row['answers']['score']:.0f}",
        "full attention's": lambda row: f"{100 * row['full']:.0f}",
        "points (95 %)": lambda row: points(row["beside"]),
        "KL (95 %)": lambda row: ranged(row["window"]["kl"], 3),
    }
    columns |= {cost: _counted(cost) for cost in ("rows", "bytes", "units")}
    control = by_arm(runs["quality-taught-more.json"]["scores"], "task")[CONTROL]
    return (
        f"{table(columns, rows)}\n\nSmolLM2-135M, test split, four tasks. Points: from full attention on the same "
        f"questions, but `speed`'s, which is trained: from the control, trained alike with all layers, which has "
        f"{100 * control['score']:.0f} % right. KL: from the model as it is, in "
        f"{span((row['window']['windows'] for row in rows), 'd')} windows of real text. Rows, most bytes, units read: "
        "of full attention's. `speed` comes with its adapter (`--adapter smollm2-speed-23`), `locret` with heads; the "
        "others are not trained. Settings were chosen on validation; of the questions some had been asked of other "
        "settings before ([which](docs/results/quality.md#what-no-plan-had-been-asked-before))."
    )


def _counted(cost: str) -> Column:
    return lambda row: number(cost, 2)(row["window"]["costs"])


BLOCKS = {"methods": Block(methods, (*FILES, CONTROLLED))}
