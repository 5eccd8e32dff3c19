"""Figures of docs/results/fidelity.md."""

from __future__ import annotations

from .tables import Block, Column, Columns, Record, code, number, one, percent, table, versions

SHARES = {  # of bytes, the best first: older files have units alone
    "total_share": ("memory", "the most bytes held, of units and all that a plan holds beside them"),
    "cache_share": ("units held", "bytes of units held at the end, without what policies hold beside them"),
}


def markdown(document: Record) -> str:
    """KL by plan and domain, all domains in one table, then a table for each; the least KL first."""
    rows = document["summary"]
    domains = [*dict.fromkeys(row["domain"] for row in rows)]
    order = sorted((row for row in rows if row["domain"] == "all"), key=lambda row: row["kl"]["mean"])
    by_place = {(row["plan"], row["domain"]): row for row in rows}
    columns: dict[str, Column] = {"plan": code("plan")}
    columns |= {domain: _kl(by_place, domain) for domain in domains}
    parts = ["## KL by domain, nats per token", table(columns, order)]
    for domain in (domains[-1], *domains[:-1]):
        here = [by_place[row["plan"], domain] for row in order]
        parts += [f"## {domain}: {here[0]['windows']} windows", table(_columns(here[0]), here)]
    return "\n\n".join([*parts, _about(document)])


def _kl(by_place: dict[tuple[str, str], Record], domain: str) -> Column:
    return lambda row: f"{by_place[row['plan'], domain]['kl']['mean']:.4f}"


def _columns(row: Record) -> Columns:
    share = _share(row)
    return {
        "plan": code("plan"),
        "KL (95 %)": lambda row: _interval(row["kl"], 1, 4, 3),
        "top-1, % (95 %)": lambda row: _interval(row["top1"], 100, 1, 0),
        "NLL": lambda row: f"{row['nll_plan']['mean']:.3f}",
        "perplexity": number("perplexity", 2),
        "rows, %": percent("rows_share"),
        f"{SHARES[share][0]}, %": percent(share),
        "units read, %": percent("units_share"),
    }


def _share(row: Record) -> str:
    return next(name for name in SHARES if name in row)


def _interval(found: Record, factor: float, digits: int, coarse: int) -> str:
    low, high = (f"{factor * found[name]:.{coarse}f}" for name in ("low", "high"))
    return f"{factor * found['mean']:.{digits}f} ({low} to {high})"


def _about(document: Record) -> str:
    name, meaning = SHARES[_share(document["summary"][0])]
    return (
        f"Windows of {document['length']:,} tokens, of which {document['fed']} are fed one by one and the others "
        "prefilled; the same windows for all plans. KL(full || plan) of the next token and NLL of the text in nats per "
        "token; top-1: both find the same token likeliest; 95 %: windows resampled. Rows computed, bytes and units "
        f"read by decode steps: % of full attention's; *{name}*: {meaning}. {document['model']}, {document['dtype']}, "
        f"{document['threads']} threads, seed {document['seed']}; {versions(document)}."
    )


def left(document: Record) -> str:
    """The units of a KV head that policies which evict leave to a decode step, in the mean over steps."""
    full = one(document["records"], plan="full", domain="books", index=0)["stats"]
    read_by_full = full["prompt_tokens"] + (full["slow_steps"] + 1) / 2
    window = [row for row in document["records"] if (row["domain"], row["index"]) == ("books", 0)]
    held = {row["plan"]: row["stats"]["cache_bytes"] for row in window}
    shares = {
        row["plan"]: row["units_share"]
        for row in document["summary"]
        if row["domain"] == "all" and held[row["plan"]] < full["cache_bytes"]
    }
    streaming = next(plan for plan in shares if plan.startswith("streaming"))
    [others] = {round(read_by_full * share) for plan, share in shares.items() if plan != streaming}
    return (
        f"Of the {len(shares)} policies that evict, {len(shares) - 1} leave {others} units per KV head to a "
        "decode step, in the mean over steps: a budget, a tail, and the new ones, of which they evict none; "
        f"`streaming` leaves {read_by_full * shares[streaming]:.0f}. Full attention reads {read_by_full:,.0f}. Compute "
        "policies have no such budget; their quality against cost is in [frontier](frontier.md)."
    )


def read(document: Record) -> str:
    """What the plans that read little have read, for the page's comparison of policies."""
    rows = [row for row in document["summary"] if row["domain"] == "all"]
    shares = {row["plan"].partition("(")[0]: 100 * row["units_share"] for row in rows if "slowfast" not in row["plan"]}
    often, rarely = (
        100 * one(rows, plan=plan)["units_share"]
        for plan in (
            "slowfast(budget=256, recent=100, interval=4, min_gap=4, memory=0.5)",
            "slowfast(budget=256, recent=100)",
        )
    )
    return (
        "- `tidal` and `quest` look at every unit's key, or its page's, in every step and take the best for the "
        "current token; and two of eight layers of each read everything. So they read "
        f"{shares['tidal']:.0f} and {shares['quest']:.0f} % of the units, and hold all of them.\n"
        f"- `slowfast` with slow steps every four tokens is next, with {often:.0f} %; in the paper's rhythm it reads "
        f"{rarely:.0f} %, and a selection that is dozens of tokens old is worth no more than recent tokens are."
    )


BLOCKS = {
    "fidelity": Block(markdown, ("fidelity.json",)),
    "fidelity-left": Block(left, ("fidelity.json",)),
    "fidelity-read": Block(read, ("fidelity.json",)),
}
