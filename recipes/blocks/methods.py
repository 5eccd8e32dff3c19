"""What the README says of the four papers' methods on a pre-trained model: a row each, of the widest run there is."""

from __future__ import annotations

from .claims.pretrained import RANKED
from .quality import by_arm, points
from .smollm2 import CONTROL, WITH_END_TRAINED
from .tables import Block, Column, Record, code, number, ranged, span, table

FINAL, TAUGHT = "quality-final.json", "quality-taught-more.json"
SLOWFAST = "slowfast(budget={1/16}, recent=192, min_gap=32)"
# Of each method its page, its plan, and the file of its run; SPEED's points are from a control, in a file of their own.
METHODS = (
    ("LazyLLM", "lazyllm", "lazyllm", FINAL),
    ("SPEED", "speed", WITH_END_TRAINED, TAUGHT),
    ("Locret", "locret", "locret(budget={3/16}, chunk=128, by_head='adaptive')", "quality-final-locret.json"),
    ("Slow-Fast", "slowfast", SLOWFAST, "quality-final-slowfast.json"),
)
FILES = (
    *(file for *_, file in METHODS),
    "quality-final-unseen.json", "quality-taught-more-unseen.json", "quality-taught-more-compared.json",
    "quality-claims.json",
)  # fmt: skip
AUTHORS = f"{SLOWFAST[:-1]}, bootstrap=16, selector='alpha_fair', trigger_on='end')"
BEFORE = f"{SLOWFAST[:-1]}, far=0.0, half_life=None)"


def methods(*told: Record) -> str:
    """Answers, distance in text, and counts of a plan of each paper; then of the papers' own settings. told: FILES."""
    files = dict(zip(FILES, told, strict=True))
    asked = {file: by_arm(each["scores"], "task") for file, each in files.items()}
    controlled = asked["quality-taught-more-compared.json"]
    rows = []
    for method, page, arm, file in METHODS:
        rows.append({
            "method": f"[{method}](docs/results/{page}.md)", "arm": arm, "full": asked[file]["full"]["score"],
            "answers": asked[file][arm], "beside": controlled.get(arm, asked[file][arm]),
            "window": by_arm(files[file]["windows"], "domain")[arm],
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
    windows = span((row["window"]["windows"] for row in rows), "d")
    return (
        f"{table(columns, rows)}\n\nSmolLM2-135M, test split, four tasks. Points: from full attention on the same "
        "questions, but `speed`'s, which is trained: from the control, trained alike with all layers, which has "
        f"{100 * asked[TAUGHT][CONTROL]['score']:.0f} % right. KL: from the model as it is, in {windows} windows of "
        "real text. Rows, most bytes, units read: of full attention's. `speed` comes with its adapter (`--adapter "
        f"smollm2-speed-23`), `locret` with heads; the others are not trained. {_papers(asked)} {_seen(asked)}"
    )


def _papers(asked: dict[str, dict[str, Record]]) -> str:
    """What the papers' own settings lose of answers, where they are not the defaults."""
    ranked, authors = asked["quality-claims.json"][RANKED], asked[FINAL][AUTHORS]
    return (
        f"With the papers' own settings LazyLLM's ranking loses much of the answers, {points(ranked)} points by "
        f"{ranked['questions']} questions at {ranked['length']:,} tokens, and so do Slow-Fast's Selector, trigger and "
        f"bootstrap, {points(authors)} by {authors['questions']} ([claim by claim](docs/fidelity.md))."
    )


def _seen(asked: dict[str, dict[str, Record]]) -> str:
    """Which of the questions had been asked before, and of whom."""
    lazyllm, speed = (
        asked[file][arm]["questions"] - asked[new][arm]["questions"]
        for file, new, arm in (
            (FINAL, "quality-final-unseen.json", "lazyllm"),
            (TAUGHT, "quality-taught-more-unseen.json", WITH_END_TRAINED),
        )
    )
    return (
        f"Settings were chosen on validation, but `locret`'s at this budget, where none were tried. Of `lazyllm`'s "
        f"questions {lazyllm} had been asked of other settings before, of `speed`'s {speed}, and all of the other "
        f"two's, those of `slowfast` when it lost more ({points(asked[FINAL][BEFORE])}); what it got then "
        "([which](docs/results/quality.md#which-rows-slow-fast-reading-listens-to-and-how-far-it-follows)) was chosen "
        "on validation."
    )


def _counted(cost: str) -> Column:
    return lambda row: number(cost, 2)(row["window"]["costs"])


BLOCKS = {"methods": Block(methods, FILES)}
