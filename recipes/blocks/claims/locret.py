"""What docs/fidelity.md says of Locret's claims."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.blocks.locret import today
from recipes.blocks.tables import MIB, Block, Record, most, one

from . import claims

OTHERS = ("h2o", "scissorhands", "streaming", "snapkv")


def table(records: list[Record], oracle: Record, memory: Record, asked: Record, packed: Record) -> str:
    """Claim by claim."""
    scores = _scores(records, oracle, today(asked))
    return claims([*scores, *_parts(records), *_costs(memory), *_long(records), _packed(packed)])


def _scores(records: list[Record], oracle: Record, wider: Record) -> Iterator[tuple[str, str, str]]:
    mine, full = (one(records, name=name, group="policies") for name in ("locret", "full"))
    others = {name: _number(records, name, "policies") for name in (*OTHERS, "sirllm", "sirllm, as its code")}
    knowing = _number(records, "snapkv, question known", "policies")
    asked, any_pair = (
        [100 * row["score"] for row in oracle["records"] if row["task"] == "kv" and row["any_question"] == any_question]
        for any_question in (False, True)
    )
    yield (
        "Close to full attention at 8x and 20x compression: 43.48 against 43.81 of InfiniteBench's tasks with "
        "Llama-3.1-8B, pass key 100, number 99.49 (Table 1)",
        "at 1/8, 1/16, 1/32: "
        + ", ".join(f"{name} {_by_budget(mine, task)} (full {_by_budget(full, task)})" for name, task in (
            ("pass key", "passkey"), ("number", "number"), ("several needles", "multi_needle")
        )),
        "yes, for sentences in prose",
    )  # fmt: skip
    yield (
        "The paper leaves out key-value retrieval (section 4.1)",
        f"{_by_budget(mine, 'kv')} (full {_by_budget(full, 'kv')}): what stands in the tail, and nothing else. Not a "
        f"matter of training: scores made of the labels themselves keep {min(asked[1:]):.0f} (full {asked[0]:.0f}, "
        f"{oracle['records'][0]['examples']} examples) when they are of the question that comes, and "
        f"{max(any_pair[1:]):.0f} when they are of any of 200 pairs",
        "no, and no method that has not seen the question can: "
        "[what no heads can beat](results/locret.md#what-no-heads-can-beat)",
    )
    yield (
        "Other eviction loses what is asked for: SirLLM 1.7 to 3.4 on pass key and number (Table 1)",
        f"number at 1/16: `sirllm` {others['sirllm']:.0f} (as its code {others['sirllm, as its code']:.0f}), "
        + ", ".join(f"`{name}` {others[name]:.0f}" for name in OTHERS)
        + ", which is the fifth of the needles that stand in the tail. `snapkv` has a window of 32 and a kernel of 5, "
        f"and {knowing:.0f} with the question known as well; with it known, a window of 64 and a kernel of 31, "
        f"{100 * wider['score']:.0f} at 1/16 of {wider['length']:,} tokens",
        "yes for policies that do not know the question; `snapkv`, which does, needs "
        "[a wide kernel](results/locret.md#snapkv)",
    )
    yield (
        "Untrained heads fail (Table 7: pass key 0, number 34)",
        f"`random_heads` {_number(records, 'random_heads', 'policies'):.0f} on number at 1/16",
        "yes",
    )


def _parts(records: list[Record]) -> Iterator[tuple[str, str, str]]:
    widths = {width: _number(records, f"facts-{width}", "heads") for width in (64, 256, 1024)}
    facts, mixed, lists = (_number(records, f"{data}-256", "heads") for data in ("facts", "mixture", "records"))
    stabilizers = ("no", "32", "64", "128", "240")
    kept = [f"{_number(records, f'{count} stabilizers', 'parts'):.0f}" for count in stabilizers]
    yield (
        "The intermediate size hardly matters (Table 10: 256 to 4,096)",
        "600 steps, number at 1/16, 50 examples: width "
        + ", ".join(f"{width:,} {got:.0f}" for width, got in widths.items()),
        "yes from 256 on; 64 is too narrow",
    )
    yield (
        "The training data hardly matters (Table 11)",
        f"600 steps, number at 1/16, 50 examples: facts in prose {facts:.0f}, half of them and half lists {mixed:.0f}, "
        f"lists alone {lists:.0f}",
        "no: here data must hold what is asked for later. The paper's sets are all general text",
    )
    yield (
        "Without stabilizers it fails completely, with few it degrades (Figure 3, appendix E)",
        f"number at budget 256, 50 examples: {', '.join(kept)} with {', '.join(stabilizers)} stabilizers",
        "no: without them little is lost, with too many there is no room for what is asked. `needle` reads far less of "
        "its context than a language model",
    )


def _costs(memory: Record) -> Iterator[tuple[str, str, str]]:
    mine = [row for row in memory["summary"] if row["bound_bytes"] is not None]
    full = [row for row in memory["summary"] if row["bound_bytes"] is None]
    longest, lengths = mine[-1], ", ".join(f"{row['length']:,}" for row in mine)
    rates, of_full = (", ".join(f"{row['tokens_per_s']:,.0f}" for row in rows) for rows in (mine, full))
    yield (
        "Memory is fixed by the budget: 128K tokens on one 24 GB GPU (section 4.3)",
        f"{longest['length']:,} tokens through `needle`, `{longest['plan']}`: {longest['peak_cache_bytes'] / MIB:.2f} "
        f"MiB of units at the peak, {longest['peak_cache_bytes'] / longest['bound_bytes']:.3f} of budget + chunk, and "
        f"at most {most(longest['aux_bytes'] / MIB, 2)} beside them; the process's memory is "
        f"{longest['growth']:.3f} times that at {mine[0]['length']:,} tokens. Full attention's cache is "
        f"{full[-1]['peak_cache_bytes'] / MIB:.2f} MiB at {full[-1]['length']:,}",
        "yes",
    )
    yield (
        "Speed does not fall with length: 3,209 to 5,081 tokens/s at 128K (Table 3)",
        f"{rates} prompt tokens/s at {lengths}; full attention {of_full} at the first two",
        "yes",
    )
    yield (
        "Training is light: 0.47 to 0.80 GPU hours, 2.5 to 8 % more parameters (section 4.1)",
        "minutes on one CPU thread (`recipes/locret/log.jsonl`). For a model as small as `needle` heads 256 wide are a "
        "quarter of its parameters",
        "yes, in time",
    )
    yield (
        "Heads keep the inserted number's place, more sharply in deeper layers (appendix G)",
        "layer 1 keeps the sentence in both heads, layers 5 to 7 in some ([picture](results/locret.md#what-is-kept))",
        "yes",
    )


def _long(records: list[Record]) -> Iterator[tuple[str, str, str]]:
    mine, full = (one(records, name=name, group="long") for name in ("locret, 1/8", "full"))
    tasks = {"pass key": "passkey", "number": "number", "several needles": "multi_needle", "key-value": "kv"}
    yield (
        "-",
        f"at {mine['length']:,} tokens, twice what `needle` was trained on, budget 1/8: "
        + ", ".join(f"{name} {_by_budget(mine, task)} (full {_by_budget(full, task)})" for name, task in tasks.items()),
        "beyond the paper: compact positions keep to the distances the model knows",
    )


def _packed(told: Record) -> tuple[str, str, str]:
    found = {row["arm"]: 100 * row["score"] for row in told["scores"]}
    alone = "locret(budget={1/16})"
    with_bits = {bits: found[f"{alone} + hf_quantized(bits={bits}, group_size=32)"] for bits in (4, 2)}
    return (
        "Works with quantised caches and with merged tokens (section 4.4)",
        f"number at 1/16 of 2,048 tokens: {found[alone]:.0f}, as Hugging Face's codes of 4 bits {with_bits[4]:.0f}, of "
        f"2 bits {with_bits[2]:.0f}, which full attention's units do not bear either "
        f"({found['hf_quantized(bits=2, group_size=32)']:.0f}); merged tokens not measured",
        "at 4 bits",
    )


def _by_budget(record: Record, task: str) -> str:
    """Scores at each budget, in percent."""
    return ", ".join(f"{100 * each['score']:.3g}" for each in record["accuracy"] if each["task"] == task)


def _number(records: list[Record], name: str, group: str) -> float:
    """The score on numbers at a sixteenth, in percent."""
    record = one(records, name=name, group=group)
    scores = [each["score"] for each in record["accuracy"] if each["task"] == "number"]
    return float(100 * scores[record["shares"].index(16)])


FILES = (
    "locret.json",
    "locret-oracle.json",
    "locret-memory.json",
    "stores-budgets-needle.json",
    "stores-locret-quantized.json",
)
BLOCKS = {"claims-locret": Block(table, FILES)}
