"""What docs/fidelity.md says of LazyLLM's claims."""

from __future__ import annotations

from recipes.blocks.lazyllm import full
from recipes.blocks.tables import Block, Record, most, one, span

from . import claims

ALL = "all tasks"
NEVER = "lazyllm(revive='never')"
COMPARED = ("random_drop(keep=0.425)", "static_prune(keep=0.233, layers=2)", "prompt_compression(keep=0.425)")


def table(table1: Record, scores: Record, depth: Record, sparsity: Record, generation: Record) -> str:
    """Claim by claim."""
    rows, timed = table1["summary"], {each["plan"]: each for each in generation["records"]}
    by_task = {plan: [row for row in rows if row["plan"] == plan and row["task"] != ALL] for plan in table1["plans"]}
    mine, never, overall = by_task["lazyllm"], by_task[NEVER], one(rows, plan="lazyllm", task=ALL)
    unrevived, chains = one(rows, plan=NEVER, task=ALL), one(mine, task="variables")
    share = {
        task: 100 * one(scores["accuracy"], plan="lazyllm", task=task)["score"] / row["score"]
        for task, row in full(scores)
    }
    lost = [100 * row["relative_score"] for plan in COMPARED for row in by_task[plan]]
    pairs = [100 * one(each, task="kv")["relative_score"] for each in (never, mine)]
    layers = [each for each in sparsity["layers"] if each["layer"] is not None]
    everything, cells = depth["cells"][0], depth["cells"][1:]
    first, later = (
        [100 * cell["score"] for cell in cells if (cell["layer"] == 1) == at_first] for at_first in (True, False)
    )
    worst = min((cell for cell in cells if cell["layer"] > 1), key=lambda cell: cell["score"])
    return claims([
        (
            "Without training, TTFT is 2.34x faster on multi-document questions at no more than 1 % loss (Table 1, "
            "section 5.2)",
            f"{100 * overall['rows_share']:.1f} % of the rows: TTFT "
            f"{span((row['ttft_speedup'] for row in mine), '.2f')}x faster; of full attention's score "
            f"{share['passkey']:.1f} % on pass key, {share['number']:.1f} % on number, {share['kv']:.1f} % on "
            f"key-value, {share['multi_needle']:.1f} % on several needles ({scores['accuracy'][0]['examples']} "
            f"examples each), {100 * chains['relative_score']:.1f} % on chains of variables ({chains['examples']}). On "
            f"Qwen3-0.6B's shape with two threads: {timed['lazyllm']['ttft_ratio']:.3f} of full attention's",
            f"TTFT yes; at most 1 % on {sum(value >= 99 for value in share.values())} of the four tasks of "
            f"{scores['accuracy'][0]['examples']} examples, which are too few to tell; on a pre-trained model "
            "[this ranking finds nothing](results/quality.md#ranked-by-one-layer-or-by-all-below)",
        ),
        (
            "Random drop, static pruning and compression lose far more at the same speed (Table 1)",
            f"at the same rows: {span(lost, '.0f')} % of full attention's score, {chains['examples']} questions a "
            "task. These tasks ask for one place of the text, which a lost token ruins; the paper's tasks forgive "
            "more. `static_prune` evicts what it stops from the layers below as well; a form that leaves those whole, "
            "as `lazyllm` does, was not run",
            "yes, more sharply, in the forms that were run",
        ),
        (
            "Compression is slower than no compression, 0.10 to 0.69x (Table 1)",
            f"{span((row['ttft_speedup'] for row in by_task[COMPARED[2]]), '.2f')}x: it is faster only where sentences "
            "are long (key-value objects), so that there are few of them to score",
            "mostly",
        ),
        (
            "Revival is what keeps the score (section 1; static pruning as evidence)",
            "`revive=\"never\"`, which keeps LazyLLM's layers but never changes the first choice: "
            f"{100 * unrevived['relative_score']:.1f} % against {100 * overall['relative_score']:.1f} % of full "
            f"attention's score over all tasks ({overall['examples']} questions), {pairs[0]:.1f} against "
            f"{pairs[1]:.1f} % on key-value ({chains['examples']}); revival takes "
            f"{overall['revived_rows']:,.0f} rows a generation. `static_prune` is no evidence here: it differs "
            "in more than revival",
            "partly",
        ),
        (
            "Fewer kept tokens cost more, later layers cost less (Figure 7)",
            f"pruning at layer 1: a score of {span(first, '.0f')} %, less the fewer are kept; from layer 2 on "
            f"{span(later, '.0f')} % at keep ratios down to {min(cell['keep'] for cell in cells):g}, the least in "
            f"layer {worst['layer']} at {worst['keep']:g}, full attention {100 * everything['score']:.0f} %; "
            f"{everything['examples']} examples a cell",
            "yes; the safe depth starts at a quarter of the layers where a tenth of the prompt is kept",
        ),
        (
            "Attention to the prompt is sparse (Figure 2)",
            f"90 % of the last token's attention is on {span((100 * each['holds']['0.9'] for each in layers), '.0f')} "
            "% of the prompt, by layer; half of it on at most "
            f"{most(max(100 * each['holds']['0.5'] for each in layers), 1)} %; "
            f"{span((100 * each['below_uniform'] for each in layers), '.0f')} % of the tokens get less than an equal "
            "part",
            "yes",
        ),
        (
            "Many prompt tokens are never computed (Figure 8; Table 2: 64 to 99.6 %)",
            f"by the end {span((100 * row['prompt_computed'] for row in mine), '.0f')} % of the prompt, mean over "
            f"layers, {span((100 * row['prompt_computed_last'] for row in mine), '.0f')} % in the last one; the lower "
            "stages fill first",
            "yes",
        ),
        (
            "A generation is 1.01 to 1.79x faster (Table 2, Llama 2)",
            f"{span((row['generation_speedup'] for row in mine), '.2f')}x, {overall['generation_speedup']:.2f}x over "
            "all tasks: `needle` decodes in milliseconds, and a step that revives costs more than that. Where nothing "
            f"is revived: {unrevived['generation_speedup']:.2f}x",
            "partly",
        ),
        (
            "Each token is computed at most once in every layer, so total work never exceeds full attention's (section "
            "3.2)",
            "asserted after every step; rows equal units held. With everything kept, a whole generation took "
            f"{timed['lazyllm(keep=1.0)']['total_ratio']:.3f} of full attention's time on Qwen3-0.6B's shape",
            "yes, for work; a single step may be slower",
        ),
        (
            "The cache with the Aux Cache does not exceed full attention's (section 3.2)",
            "live bytes: yes, where the bound below holds. The sum of both peaks, which need not fall together, is "
            f"{span((row['peak_ratio'] for row in mine), '.2f')}x",
            "yes, with the limits below",
        ),
        (
            "Peak memory equals full attention's, since the first layers hold all tokens (section 5.4)",
            "lower: upper layers' memory is reserved for what enters them, "
            f"{unrevived['peak_ratio']:.2f}x where nothing is revived",
            "better",
        ),
    ])  # fmt: skip


def step(generation: Record) -> str:
    """What choosing costs in a decode step."""
    mine = one(generation["records"], plan="lazyllm(max_revive=0)")
    return (
        f"A decode step that chooses and revives nothing takes {mine['step_ratio']:.2f} of a full step on Qwen3-0.6B's "
        f"shape after {generation['length']:,} tokens: it reads less, and ranks and gathers for it. Revived rows in "
        "the relaxed and in the causal mask make no difference to the scores here."
    )


FILES = tuple(f"lazyllm-{name}.json" for name in ("table1", "accuracy", "depth", "sparsity", "generation"))
BLOCKS = {
    "claims-lazyllm": Block(table, FILES),
    "claims-lazyllm-step": Block(step, ("lazyllm-generation.json",)),
}
