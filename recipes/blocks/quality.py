"""Figures of docs/results/quality.md."""

from __future__ import annotations

from collections.abc import Callable

from .tables import Block, Column, Record, code, number, ranged, span, table

ALL = "all"  # tasks, or domains, in records


def arms(told: Record) -> str:
    """A row per arm: what it answered of each task, and what it cost."""
    rows = [row for row in told["scores"] if row["task"] == ALL]
    cells = {(row["arm"], row["task"]): row for row in told["scores"]}
    columns: dict[str, Column] = {"plan": code("arm")}
    columns |= {f"`{task}`, right": _right(cells, task) for task in _tasks(told)}
    columns |= {"points (95 %)": marked}
    columns |= {cost: _share(cost) for cost in ("rows", "bytes", "units")}
    first = told["headers"][0]
    about = (
        f"{first['model']}, {first['split']}, {rows[0]['length']:,} tokens, the same {rows[0]['questions']} questions "
        "for all; points: from full attention's score, in pairs; rows computed, the most bytes held and units read by "
        "decode steps: of full attention's. *: so few questions choose a setting; they measure no plan."
    )
    return f"{table(columns, rows)}\n\n{about}"


def _tasks(told: Record) -> list[str]:
    """In the order in which they were asked."""
    return [task for task in dict.fromkeys(row["task"] for row in told["scores"]) if task != ALL]


def _right(cells: dict[tuple[str, str], Record], task: str) -> Column:
    def shown(row: Record) -> str:
        cell = cells[row["arm"], task]
        right = cell["score"] * cell["questions"]  # of some tasks an answer may be right in part
        return f"{right:.3f}".rstrip("0").rstrip(".") + f" of {cell['questions']}"

    return shown


def points(row: Record) -> str:
    return ranged(row["difference"], 0, 100, sign="+")


def marked(row: Record) -> str:
    return points(row) + ("*" if row["few"] else "")


def _share(cost: str) -> Column:
    return lambda row: number(cost, 2)(row["costs"])


def measured(told: Record, by_task: bool = False) -> str:
    """A row per arm: its answers and its distance from full attention over all windows, and what it cost. by_task: the
    points of each task too."""
    scores = by_arm(told["scores"], "task")
    rows = [{**row, "answers": scores.get(row["arm"])} for row in over_all(told["windows"], "domain")]
    columns: dict[str, Column] = {"plan": code("arm")}
    if scores:
        columns |= {"right, %": _of_answers(_answered), "points (95 %)": _of_answers(marked)}
    if by_task:
        columns |= _by_task(told)
    columns |= {"KL (95 %)": lambda row: ranged(row["kl"], 3), "perplexity, x": lambda row: ranged(row["ratio"], 3)}
    after = ("after",) if any(row["costs"].get("after") is not None for row in rows) else ()
    columns |= {cost: _share(cost) for cost in ("rows", "bytes", *after, "held", "units")}
    first, windows = told["headers"][0], max(row["windows"] for row in rows)
    asked = span((row["questions"] for row in scores.values()), "d") if scores else ""
    tasks = ", ".join(f"`{task}`" for task in _tasks(told))
    about = f"{first['model']}, {first['split']}, {rows[0]['length']:,} tokens; {windows} windows of real text, "
    about += f"{first['fed']} tokens after each; "
    if asked:
        about += f"{asked} questions of {tasks}, points: from full attention's score, in pairs, "
        about += "one that is asked again counted once; "
        about += "*: fewer than 100 different questions; "
    return (
        f"{table(columns, rows)}\n\n{about}KL of the next token, nats; x: of full "
        "attention's perplexity; bytes: the most held at once, of all"
        f"{'; after: all at the end' if after else ''}; held: units at the end; all of these, of full attention's."
    )


def final(told: Record) -> str:
    """The same with the points of each task: of the test split."""
    return measured(told, by_task=True)


def unseen(told: Record) -> str:
    """Answers alone, of the questions that no arm had been asked before."""
    scores = by_arm(told["scores"], "task")
    columns: dict[str, Column] = {"plan": code("arm"), "right, %": _answered, "points (95 %)": marked}
    columns |= _by_task(told)
    first, asked = told["headers"][0], scores["full"]["questions"]
    about = (
        f"{first['model']}, {first['split']}, {scores['full']['length']:,} tokens; {asked} questions; points: from "
        "full attention's score, in pairs; *: fewer than 100 different questions."
    )
    return f"{table(columns, list(scores.values()))}\n\n{about}"


def compared(told: Record) -> str:
    """Arms beside the one that all are compared with: points, KL less its own, and perplexity over its own."""
    scores, windows = by_arm(told["scores"], "task"), by_arm(told["windows"], "domain")
    against = told["against"]
    columns: dict[str, Column] = {
        "plan": code("arm"),
        "points (95 %)": lambda row: marked(scores[row["arm"]]),
        "KL, less its (95 %)": lambda row: ranged(row["difference"], 3, sign="+"),
        "perplexity, of its (95 %)": lambda row: ranged(row["ratio_against"], 3),
    }
    rows = [row for arm, row in windows.items() if arm not in ("full", against)]
    own, first = windows[against], told["headers"][0]
    about = (
        f"{first['model']}, {first['split']}, {own['length']:,} tokens; from `{against}`, in pairs: of "
        f"{scores[against]['questions']} questions (*: fewer than 100 different ones), and of {own['windows']} "
        "windows, which are resampled."
    )
    return f"{table(columns, rows)}\n\n{about}"


# At most so much of full attention's, for plans of one verb and for those of several, and the KL that a plan may have
# there; and what it may lose of answers.
WANTED: dict[str, tuple[dict[str, float], float]] = {
    "at most 0.6 of the rows": ({"rows": 0.6}, 0.08),
    "at most a quarter of the bytes": ({"bytes": 0.25}, 0.10),
    "at most an eighth of the units": ({"units": 0.125}, 0.05),
    "at most 0.75 of the rows, a quarter of the bytes and an eighth of the units": (
        {"rows": 0.75, "bytes": 0.25, "units": 0.125}, 0.15,
    ),
}  # fmt: skip
MOST, LEAST = -0.02, -0.05


def wanted(told: Record, unseen: Record) -> str:
    """A line per cost: the plans that fit it, by questions and by windows, and which of them lose little."""
    scores, windows = by_arm(told["scores"], "task"), by_arm(told["windows"], "domain")
    news = by_arm(unseen["scores"], "task")

    def shown(arm: str, far: float) -> str:
        kept = all(f[arm]["difference"]["mean"] >= MOST and f[arm]["difference"]["low"] > LEAST for f in (scores, news))
        all_of, new = (ranged(found[arm]["difference"], 1, 100, sign="+") for found in (scores, news))
        text = f"`{arm}` {all_of}, of the unseen {new}, KL {ranged(windows[arm]['kl'], 3)}"
        return f"**{text}**" if kept and windows[arm]["kl"]["mean"] <= far else text

    def fits(arm: str, most: dict[str, float]) -> bool:
        costs = [found[arm]["costs"] for found in (scores, windows)]
        return all(each[cost] <= share for each in costs for cost, share in most.items())

    lines = []
    for what, (most, far) in WANTED.items():
        plans = [arm for arm in scores if arm != "full" and not arm.startswith(ORACLE)]
        fitting = [arm for arm in plans if (" + " in arm) == (len(most) > 1) and fits(arm, most)]
        best = sorted(fitting, key=lambda arm: -float(scores[arm]["difference"]["mean"]))
        lines.append(f"- With {what} (KL wanted: at most {far:.2f}): {'; '.join(shown(arm, far) for arm in best)}.")
    return "\n".join(lines)


ORACLE = "oracle: "  # begins the name of an arm that no one would run
# What was chosen on validation for each cost, and for all at once.
CHOSEN = {
    "0.6 of the rows": "fastkv(keep=0.44, layer=8, window=1024)",
    "a quarter of the bytes": "mapped(resident_mib=20)",
    "an eighth of the units": "sketch(budget={11/128})",
    "0.75 of the rows, a quarter of the bytes and an eighth of the units": (
        "fastkv(keep=0.6, layer=8, window=1024) + sketch(budget={3/32}) + mapped(resident_mib=20)"
    ),
}


def caption(told: Record, unseen: Record) -> str:
    """What the README says below the picture, and a row for what was chosen at each cost."""
    scores, news = by_arm(told["scores"], "task"), by_arm(unseen["scores"], "task")
    windows = by_arm(told["windows"], "domain")
    full = scores["full"]
    plans = [arm for arm in windows if arm != "full" and not arm.startswith(ORACLE)]
    columns: dict[str, Column] = {
        "with at most": lambda row: str(row["cost"]),
        "plan": code("arm"),
        f"points, of {full['questions']}": lambda row: points(scores[row["arm"]]),
        f"of the {news['full']['questions']} unseen": lambda row: points(news[row["arm"]]),
        "KL": lambda row: ranged(windows[row["arm"]]["kl"], 3),
        "perplexity, x": lambda row: ranged(windows[row["arm"]]["ratio"], 3),
    }
    return (
        f"*SmolLM2-135M after {full['length']:,} tokens: what {len(plans)} plans lose over what each computes, holds "
        f"and reads. Full attention answers {_answered(full)} % of {full['questions']} questions of the test split; "
        f"beside them are {windows['full']['windows']} windows of real text.*\n\n"
        + table(columns, [{"cost": cost, "arm": arm} for cost, arm in CHOSEN.items()])
        + "\n\nPoints: from full attention, of all questions and of those that no plan had been asked before; in "
        "brackets 95 % intervals, in braces shares of a prompt's tokens (a plan wants their number). Chosen on "
        "validation, some anew when the test's first questions had been seen. Points are a mean of four tasks: what "
        "skips rows answers more of one and less of another ([by task](docs/results/quality.md#what-is-lost)). "
        "`mapped` holds in files what it does not hold in memory; `fastkv` was nearest in text, and `lazyllm` and "
        "`static_prune` lose fewer answers in as many rows. `slowfast` is in the picture as it was before [what it has "
        "now](#plans), and with its authors' settings."
    )


def _by_task(told: Record) -> dict[str, Column]:
    """Points from full attention's score; of full attention, its own."""
    cells = {(row["arm"], row["task"]): row for row in told["scores"]}

    def of(task: str) -> Column:
        def shown(row: Record) -> str:
            cell = cells.get((row["arm"], task))
            if cell is None:
                return ""
            few = "*" if cell["few"] else ""
            told = f"{_answered(cell)} %" if cell["arm"] == "full" else f"{100 * cell['difference']['mean']:+.0f}"
            return f"{told}{few}"

        return shown

    return {f"`{task}`": of(task) for task in _tasks(told)}


def survey(told: Record) -> str:
    """A row per task: what each arm answered."""
    cells = {(row["task"], row["arm"]): row for row in told["scores"]}
    plans = list(dict.fromkeys(row["arm"] for row in told["scores"]))
    columns: dict[str, Column] = {"task": code("task")}
    columns |= {f"`{arm}`, %": (lambda row, arm=arm: _answered(cells[row["task"], arm])) for arm in plans}
    columns["questions"] = lambda row: str(cells[row["task"], plans[0]]["questions"])
    first = told["headers"][0]
    about = f"{first['model']}, {first['split']}, {told['scores'][0]['length']:,} tokens."
    return f"{table(columns, [{'task': task} for task in _tasks(told)])}\n\n{about}"


def only(*policies: str) -> Callable[[Record], str]:
    """The table of full attention and of the plans that begin with one of these policies."""

    def shown(told: Record) -> str:
        def belongs(row: Record) -> bool:
            return row["plan"].partition("(")[0] in ("full", *policies)

        return final(told | {kind: [row for row in told[kind] if belongs(row)] for kind in ("scores", "windows")})

    return shown


def by_arm(rows: list[Record], kind: str) -> dict[str, Record]:
    """The rows over all tasks, or domains, by their arm."""
    return {row["arm"]: row for row in over_all(rows, kind)}


def over_all(rows: list[Record], kind: str) -> list[Record]:
    """The rows over all tasks, or domains; of a single one, its own."""
    return [row for row in rows if row[kind] == ALL] if len({row[kind] for row in rows}) > 1 else rows


def _of_answers(shown: Column) -> Column:
    return lambda row: "" if row["answers"] is None else shown(row["answers"])


def _answered(row: Record) -> str:
    return f"{100 * row['score']:.0f}"


def chosen(told: Record) -> str:
    """A row per cost and policy, the closest to full attention first; then what has no setting that fits."""
    columns = {
        "cost": lambda row: ", ".join(f"{count} <= {most:g}" for count, most in row["at_most"].items()),
        "policy": code("policy"),
        "setting": code("plan"),
        "counted": lambda row: ", ".join(f"{share:.2f}" for share in row["shares"].values()),
        "KL": number("kl", 3),
        "fit": lambda row: f"{row['fitting']} of {row['tried']}",
    }
    costs = list(dict.fromkeys(row["cost"] for row in told["arms"]))
    rows = sorted(told["arms"], key=lambda row: (costs.index(row["cost"]), row["kl"]))
    first = told["headers"][0]
    about = (
        f"{first['model']}, {first['split']}, {first['fed']} tokens after each window; counted: of full attention's, "
        "over all windows; KL of the next token, nats, the mean of windows. "
    )
    return f"{table(columns, rows)}\n\n{about}{' '.join(f'{each}.' for each in told['told'])}"


SHOWN = {
    final: (
        "final",
        "final-8000",
        "final-locret",
        "final-slowfast",
        "screen",
        "final-needle",
        "final-other",
        "depth-other",
        "depth-five",
        "slowfast-budget",
        "recent",
        "above",
        "above-test",
        "spread",
        "spread-needle",
    ),
    arms: ("keep", "compute", "defaults-needle", "defaults-others-needle", "ranking-needle"),
    measured: ("votes", "reads", "defaults", "defaults-others", "ranking", "nearby"),
    chosen: ("chosen",),
    survey: ("survey",),
}
BLOCKS = {
    f"quality-{name}": Block(shown, (f"quality-{name}.json",)) for shown, names in SHOWN.items() for name in names
}
BLOCKS["quality-final-unseen"] = Block(unseen, ("quality-final-unseen.json",))
BLOCKS["quality-final-wanted"] = Block(wanted, ("quality-final.json", "quality-final-unseen.json"))
BLOCKS["quality-final-caption"] = Block(caption, ("quality-final.json", "quality-final-unseen.json"))
