"""Figures of docs/results/locret.md, and what the README says of them."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.frontier.figures import most_bytes

from .tables import MEMORY, MIB, Block, Column, Columns, Record, code, mib, of_memory, one, scored, table

TITLES = {
    "policies": "Full attention and Locret on four tasks; number retrieval of all policies at a sixteenth",
    "curve": "Number retrieval of the others at an eighth and at a 32nd",
    "other tasks": "The others on the other tasks, at a sixteenth",
    "long": "At 16,384 tokens",
    "heads": "Heads: what they were trained on, and how wide they are",
    "parts": "Parts of Locret",
}
GROWTH: Columns = {
    "plan": code("plan"),
    "tokens": lambda row: f"{row['length']:,}",
    "TTFT, s": lambda row: f"{row['ttft_s']:.2f}",
    "tokens/s": lambda row: f"{row['tokens_per_s']:,.0f}",
    "a decode step, ms": lambda row: f"{1000 * row['step_s']:.1f}",
    "most units, MiB": mib("peak_cache_bytes"),
    "of its bound": lambda row: _of_bound(row),
    "beside units, MiB": mib("aux_bytes"),
    "process at its peak, MiB": mib("peak_bytes", 0),
    "of that at the shortest": lambda row: f"{row['growth']:.3f}",
}


def _of_bound(row: Record) -> str:
    return "" if row["bound_bytes"] is None else f"{row['peak_cache_bytes'] / row['bound_bytes']:.3f}"


def markdown(records: list[Record]) -> str:
    """A table per group: an arm and a budget per line, a task per column, with 95 % intervals."""
    sections = []
    for group, title in TITLES.items():
        if mine := [record for record in records if record["group"] == group]:
            sections.append(f"## {title}\n\n{_table(mine)}")
    name, meaning = MEMORY[of_memory(next(iter(records[0]["most_bytes"].values())))]
    return "\n\n".join([*sections, f"*{name}*: {meaning}."]) + "\n"


def _table(records: list[Record]) -> str:
    """Of one group."""
    counted = of_memory(next(iter(records[0]["most_bytes"].values())))
    columns: dict[str, Column] = {
        "": lambda line: line["name"],
        "plan": code("plan"),
        "tokens": lambda line: f"{line['length']:,}",
        "budget": lambda line: "all" if line["share"] == 1 else f"1/{line['share']}",
        "n": lambda line: str(line["examples"]),
    }
    columns |= {task: _score(task) for task in dict.fromkeys(task for each in records for task in each["tasks"])}
    columns[f"{MEMORY[counted][0]}, MiB"] = lambda line: f"{most_bytes(line['most_bytes'][line['plan']]) / MIB:.2f}"
    return table(columns, [line for record in records for line in _lines(record)])


def _lines(record: Record) -> Iterator[Record]:
    """A record as one line for each of its budgets. scores: by task."""
    plans = list(dict.fromkeys(each["plan"] for each in record["accuracy"]))
    for plan, share in zip(plans, record["shares"], strict=True):
        scores = {each["task"]: each for each in record["accuracy"] if each["plan"] == plan}
        yield record | {"plan": plan, "share": share, "scores": scores}


def _score(task: str) -> Column:
    return lambda line: scored(line["scores"][task]) if task in line["scores"] else ""


def oracle(document: Record) -> str:
    """Scores by task and by which questions the labels are of, a column per budget."""
    records = document["records"]
    length = records[0]["length"]
    columns: dict[str, Column] = {
        "task": lambda row: row["task"],
        "labels of": lambda row: "200 of the pairs" if row["any_question"] else "the question that comes",
    }
    rows: dict[tuple[str, bool], Record] = {}
    for each in records:
        share = length // each["budget"]
        head = "all, %" if share == 1 else f"1/{share}, %"
        columns[head] = _at(head)
        rows.setdefault((each["task"], each["any_question"]), dict(each))[head] = each["score"]
    about = f"At {length:,} tokens, {records[0]['examples']} examples a task:"
    return f"{about}\n\n{table(columns, rows.values())}"


def _at(head: str) -> Column:
    return lambda row: f"{100 * row[head]:.0f}"


def growth(document: Record) -> str:
    """Time and memory by length; what was left out, and why."""
    left = [f"`{each['plan']}` at {each['length']:,} tokens: {each['reason']}" for each in document["left_out"]]
    return table(GROWTH, document["summary"]) + (f"\n\nLeft out: {'; '.join(left)}." if left else "")


FORMER = "window=32, kernel=5, pooling='avg'"


def wider(asked: Record) -> str:
    """What `snapkv` answers with the window and the kernel that it has by default now."""
    plain, pyramid, former = (today(asked, more) for more in ("", ", by_layer='pyramid'", f", {FORMER}"))
    return (
        f"`snapkv` was run with `{FORMER}`, its defaults of that day. With "
        f"today's, `window=64, kernel=31, pooling='max'`, `{plain['plan']}` answers {100 * plain['score']:.0f} of "
        f"{plain['questions']} numbers at {plain['length']:,} tokens, a sixteenth, where full attention answers "
        f"{100 * plain['full']:.0f}, `{pyramid['plan']}` {100 * pyramid['score']:.0f}, and the former defaults "
        f"{100 * former['score']:.0f} of the same "
        "([budgets by layer](stores.md#budgets-by-layer-and-by-head)). The other tasks, and chunks, are not measured "
        "with them."
    )


def today(asked: Record, more: str = "") -> Record:
    """Number retrieval of `snapkv` at a sixteenth with its defaults of today, or with `more`."""
    return one(asked["scores"], arm=f"snapkv(budget={{1/16}}{more})", task="number")


BLOCKS = {
    "locret": Block(markdown, ("locret.json",)),
    "locret-snapkv": Block(wider, ("stores-budgets-needle.json",)),
    "locret-oracle": Block(oracle, ("locret-oracle.json",)),
    "locret-memory": Block(growth, ("locret-memory.json",)),
}
