"""Figures of docs/results/serving.md: a server under load, beside another, over a chat, without a replica."""

from __future__ import annotations

from .tables import MIB, Block, Column, Columns, Record, code, count, key, machine, mib, number, table


def three(name: str) -> Column:
    """p50, p90 and p99, in seconds; empty where there are none."""
    return lambda row: " / ".join(f"{value:.3g}" for value in row[name] or ())


ANSWERED: Columns = {
    "prompts": key("kind"),
    "asked": count("requests"),
    "lost": count("lost"),
    "as alone": lambda row: f"{row['same']} of {row['compared']}",
    "another's": count("anothers"),
    "prompt tokens": lambda row: f"{row['prompt'][0]:,} to {row['prompt'][1]:,}",
}
WAITED: Columns = {"TTFT, s": three("ttft_s"), "ITL, s": three("itl_s")}


def exact(told: Record) -> str:
    """What became of every request."""
    return f"{table(ANSWERED, told['summary'])}\n\n{_asked(told)}; {machine(told)}."


def streams(told: Record) -> str:
    """The same, and what each waited for."""
    together, alone = told["together"], told["one_at_a_time"]
    spent = (
        f"At once: {together['tokens']:,} tokens in {together['seconds']:,.0f} s, {together['tokens_per_s']:.1f} a "
        f"second; one at a time: {alone['tokens']:,} in {alone['seconds']:,.0f} s, {alone['tokens_per_s']:.1f} a "
        "second. TTFT and ITL: p50, p90 and p99, from the first time that a client asked."
    )
    return f"{table({**ANSWERED, **WAITED}, told['summary'])}\n\n{_asked(told)}. {spent} {machine(told)}."


def _asked(told: Record) -> str:
    plans = ", ".join(f"`{plan}`" for plan in dict.fromkeys(each["plan"] for each in told["records"]))
    return f"{told['model']}, {told['new']} new tokens each, plans in turns: {plans}"


def of_kind(kind: str, column: Column) -> Column:
    """A column of the prompts of one kind, of a record that has several."""
    return lambda record: column(next(row for row in record["summary"] if row["kind"] == kind))


PEERS: Columns = {
    "server": key("server"),
    "lost": lambda record: f"{sum(row['lost'] for row in record['summary']):,}",
    **{f"{kind}: {name}": of_kind(kind, column) for kind in ("short", "long") for name, column in WAITED.items()},
    "all, s": lambda row: f"{row['together']['seconds']:,.0f}",
    "tokens/s": lambda row: f"{row['together']['tokens_per_s']:.1f}",
    "alone, tokens/s": lambda row: _alone(row),
    "resident, MiB": lambda row: f"{row['resident'][1] / MIB:,.0f}",
}


def _alone(told: Record) -> str:
    """Nothing where answers were lost: of those before, which may still be computed, or of those asked alone."""
    alone = told["one_at_a_time"]
    whole = not told["problems"] and alone["tokens"] == alone["requests"] * told["new"]
    return f"{alone['tokens_per_s']:.1f}" if whole else ""


def peers(*told: Record) -> str:
    """The same requests of several servers, one after another."""
    names = ("winnow, `full`", "llama-server", "transformers serve")
    rows = [{"server": name, **doc} for name, doc in zip(names, told, strict=True)]
    about = (
        f"The same {sum(row['requests'] for row in told[0]['summary'])} requests of each, {told[0]['new']} new tokens "
        "each, at most, of short and of long prompts; lost: not whole in time; TTFT and ITL: p50, p90 and p99, of what "
        "came; all: from the first question to the last answer; alone: some of the requests, one at a time, not shown "
        "where some of them were lost, or of those before, which may still be computed; resident: after the load."
    )
    commits = ", ".join(dict.fromkeys(str(row["commit"]) for row in told))
    return f"{table(PEERS, rows)}\n\n{about} {machine(told[0] | {'commit': commits})}."


ARRIVING: Columns = {
    "arrival": key("arrival"),
    "prompt tokens": count("prompt"),
    "p50 before, ms": lambda row: f"{1000 * row['p50_before_s']:.1f}",
    "p99 before": lambda row: f"{1000 * row['p99_before_s']:.1f}",
    "p50 meanwhile": lambda row: f"{1000 * row['p50_s']:.1f}",
    "p99 meanwhile": lambda row: f"{1000 * row['p99_s']:.1f}",
    "p99, x": number("ratio", 2),
    "over p50, x": number("of_median", 2),
    "TTFT, s": number("ttft_s", 2),
    "of alone, x": number("of_alone", 2),
}


def arriving(told: Record) -> str:
    """Gaps of running streams before a long prompt comes, and until its first token."""
    about = (
        f"{told['model']}, {told['streams']} streams; x: p99 meanwhile over p99 before, and over p50 before; of alone: "
        f"TTFT over that of a prompt as long on an idle server; {machine(told)}."
    )
    return f"{table(ARRIVING, told['summary'])}\n\n{about}"


TURNS: Columns = {
    "plan": code("plan"),
    "first turn, s": number("first_s", 2),
    "later, s": number("later_s", 3),
    "of first, x": number("of_first", 3),
    "worst, x": number("worst", 3),
    "rows, of first": number("rows", 3),
    "new tokens": count("new"),
    "held, MiB": mib("held", 1),
    "as without reuse": lambda row: f"{row['same']} of {row['compared']}",
}


def turns(told: Record) -> str:
    """What the turns of a chat wait for."""
    cap = f", under a cap of {told['max_cache_mib']:,.0f} MiB" if told["max_cache_mib"] else ""
    about = (
        f"{told['model']}: {told['turns']} turns over a document of {told['length']:,} tokens, {told['new']} new "
        f"tokens each{cap}. TTFT: of first turns and of later ones, medians; of first: over the first of its chat, the "
        "median and the largest; rows: computed in later turns, over the first's; new tokens: of a later prompt, that "
        "were computed; held: the most after any step; as without reuse: of the last "
        f"answers, those that an engine gives that retains nothing. {machine(told)}."
    )
    return f"{table(TURNS, told['summary'])}\n\n{about}"


EQUAL: Columns = {
    "plan": code("plan"),
    "new tokens": count("new"),
    "as without reuse": lambda row: f"{row['same']} of {row['compared']}",
}


def equal(told: Record) -> str:
    """Whether later turns get what they would get without reuse."""
    about = (
        f"{told['model']}, deterministic: {told['turns']} turns over a document of {told['length']:,} tokens, "
        f"{told['new']} new tokens each, in steps of {told['prefill_chunk']}; new tokens: of a later prompt, that were "
        f"computed, the median; as without reuse: later answers equal, token by token, to those of an engine that "
        f"retains nothing. {machine(told)}."
    )
    return f"{table(EQUAL, told['summary'])}\n\n{about}"


MEMORY: Columns = {
    "requests": count("requests"),
    "resident, MiB": mib("resident", 0),
    "of the first look": lambda row: f"{100 * row['of_first']:.1f} %",
    "reserved, MiB": mib("reserved", 1),
    "running": count("running"),
}


def memory(told: Record) -> str:
    """A server's memory over many requests."""
    first = told["looks"][0]["resident"]
    rows = [{**look, "of_first": look["resident"] / first} for look in told["looks"]]
    ends = ", ".join(f"{count:,} {end}" for end, count in told["ends"].items())
    plans = ", ".join(f"`{plan}`" for plan in told["plans"])
    about = (
        f"{told['model']}, prompts of {told['length'][0]:,} to {told['length'][1]:,} tokens, up to {told['new']} new "
        f"ones, {told['together']} at once, plans in turns: {plans}. How they ended: {ends}. The first look is that "
        f"after the warm-up. The server: `winnow serve {told['serve']}`; its client: {machine(told)}."
    )
    return f"{table(MEMORY, rows)}\n\n{about}"


HARNESS: Columns = {
    "dtype": key("dtype"),
    "task": key("task"),
    "metric": key("metric"),
    "documents": count("documents"),
    "in process": lambda row: repr(row["in_process"]),
    "over HTTP": lambda row: repr(row["over_http"]),
    "the same answer": lambda row: f"{row['same']} of {row['documents']}",
}


def harness(*told: Record) -> str:
    """What lm_eval finds in process and over HTTP."""
    rows = [{"dtype": doc["dtype"], **row} for doc in told for row in doc["summary"]]
    about = (
        f"{told[0]['model']}, deterministic, {told[0]['together']} requests at once over HTTP; the same answer: of "
        f"likelihoods, to the last digit. {machine(told[0])}."
    )
    return f"{table(HARNESS, rows)}\n\n{about}"


GONE: Columns = {
    "what goes away": key("event"),
    "streams": count("streams"),
    "complete": count("complete"),
    "identical": count("identical"),
    "gone on elsewhere": count("gone_on"),
    "longest wait, s": number("longest_s", 2),
    "median, s": number("median_s", 2),
}


def gone(told: Record) -> str:
    """What the death of a replica does to all streams."""
    where = "two nodes of Ray on one machine" if told["ray"] else "two processes"
    about = (
        f"{told['model']} under `{told['plan']}`, {told['new']} tokens a stream, {where}; identical: to the first "
        f"row's; wait: each stream's longest between two pieces, the largest and the median. {machine(told)}."
    )
    return f"{table(GONE, told['summary'])}\n\n{about}"


BLOCKS = {
    "serving-deterministic": Block(exact, ("serving-deterministic.json",)),
    "serving-streams": Block(streams, ("serving-streams.json",)),
    "serving-peers": Block(
        peers,
        (
            "serving-streams-full.json",
            "serving-streams-llama-server.json",
            "serving-streams-transformers.json",
        ),
    ),
    "serving-arriving": Block(arriving, ("serving-arriving.json",)),
    "serving-turns": Block(turns, ("serving-turns.json",)),
    "serving-turns-equal": Block(equal, ("serving-turns-equal.json",)),
    "serving-memory": Block(memory, ("serving-memory.json",)),
    "serving-harness": Block(harness, ("serving-harness.json", "serving-harness-bfloat16.json")),
    "serving-replicas": Block(gone, ("serving-replicas.json",)),
    "serving-replicas-ray": Block(gone, ("serving-replicas-ray.json",)),
}
