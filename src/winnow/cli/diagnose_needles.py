"""`winnow diagnose needles`: in which layer the end of a prompt finds what it asks for."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Group, RenderableType

from winnow.cli.commands.look import Needles as Options
from winnow.cli.deliver import Record, deliver
from winnow.cli.draw import GREY, new_figure, plain, save
from winnow.cli.inputs import make_tasks
from winnow.cli.options import EXAMPLES, TASKS
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.diagnosis.needles import (
    ENOUGH,
    MOST,
    VOTES,
    Needle,
    Needles,
    Ranks,
    Share,
    search_needles,
    summarise_needles,
)
from winnow.engine.depth import attention_back
from winnow.errors import InputError
from winnow.evaluation.evaluate import environment

COLORS = {"last": "0.6", "mean": "#7fb2e5", "max": "#1f5fa8", "all": "#d9822b"}


def needles(options: Options) -> int:
    """Search and show; returns the exit code."""
    if len(options.lengths) > 1:
        raise InputError("a diagnosis takes one --length")
    tasks = make_tasks(options.task or TASKS, options.data, options.haystack)
    llm = options.load()
    [tokens], count = options.lengths, options.examples or EXAMPLES
    done, wanted = list[Needle](), count * len(tasks)
    ranks = Ranks(options.voters, options.kernel, options.before)
    with Meter("searching", wanted * tokens) as meter, interruptible():
        for each in search_needles(llm, tasks, tokens, count, ranks=ranks, seed=options.seed, progress=meter.advance):
            done.append(each)
            meter.note(f"{len(done)} of {wanted} prompts")
    found = summarise_needles(done, ranks, attention_back(llm.decoder)) if done else None
    figures = found.to_dict() if found else {}
    title = f"{options.model_name}, {len(done)} prompts of {tokens:,} tokens"
    shown = _view(found, title) if found else "no prompt was finished"
    draw = partial(_plot, found=found, title=title) if found else None
    asked = {"tasks": [each.name for each in tasks], "length": tokens, "examples": count, "seed": options.seed}
    about = {**asked, **environment(llm, options.model_name)}
    return deliver(Record("diagnose needles", figures, shown, draw, len(done) == wanted, about), options)


CAPTION = (
    "% of the prompt's tokens that have to go on by the attention in this layer for all tokens of the answer to be "
    f"among them: the median, and in {100 * MOST:g} % of the prompts; last: of the last token; mean, max: of the last "
    "{voters}, per query head their mean or the most that any of them pays; all: the best max of all layers so far; "
    "pooled over {kernel} tokens, at most {before} before the one that is found; repeated: % of the attention, of the "
    "best head, that random tokens which come again pay to where they stood first"
)


def _view(found: Needles, title: str) -> RenderableType:
    table = new_table(title, CAPTION.format(**asdict(found.ranks)))
    for heading in (
        "layer",
        *(f"{vote}\n{name}" for vote in VOTES for name in ("median", f"{100 * MOST:g} %")),
        "repeated",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer, (shares, paid) in enumerate(zip(found.layers, found.repeated, strict=True)):
        cells = ["-"] * 2 * len(VOTES) if shares is None else [_percent(s) for v in VOTES for s in _both(shares[v])]
        table.add_row(str(layer), *cells, "-" if paid is None else _percent(paid))
    return Group(table, "", advice(found), by_default(found))


def advice(found: Needles) -> str:
    """What to try, in a line or two."""
    if found.first is None:
        return f"In no layer are {100 * ENOUGH:g} % of the tokens enough: a prompt of this kind had better not stop."
    layer, vote = found.first
    shares, voters = found.layers[layer], found.ranks.voters
    assert shares is not None
    how = {"last": "voters=1", "mean": f"voters={voters}, votes='mean'"}.get(vote, f"voters={voters}")
    alone = "" if vote == "all" else ", rank_layers='last'"
    return (
        f"Layer {layer} is the first to find it: {_percent(shares[vote].most)} % of the tokens are enough in "
        f"{100 * MOST:g} % of the prompts. Other text takes more; to try, with what costs allow to keep: fastkv(keep="
        f"0.4, layer={layer + 1}, window={voters}, kernel={found.ranks.kernel}, before={found.ranks.before}, {how}"
        f"{alone}); for static_prune that is layers={layer + 1}, for lazyllm the first of its layers"
    )


GATES = "By default the gates of lazyllm, static_prune and fastkv"


def by_default(found: Needles) -> str:
    """Where gates stand that nobody has placed."""
    if found.finds is None:
        return f"{GATES} stand at shares of the layers: no layer is known to find what is repeated."
    return f"{GATES} stand above layer {found.finds} at the lowest, the first to find what is repeated."


def _both(share: Share) -> tuple[float, float]:
    return share.median, share.most


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _plot(path: Path, found: Needles, title: str) -> None:
    """A line per vote over the layers: the median, and up to what is enough in most prompts."""
    figure = new_figure(8, 4.5)
    axis = figure.subplots()
    asked = [layer for layer, shares in enumerate(found.layers) if shares is not None]
    for vote in VOTES:
        told = [shares[vote] for shares in found.layers if shares is not None]
        medians, most = ([100 * share for share in each] for each in zip(*map(_both, told), strict=True))
        axis.plot(asked, medians, color=COLORS[vote], marker="o", ms=4, lw=1.6, label=f"{vote}: median of prompts")
        axis.fill_between(asked, medians, most, color=COLORS[vote], alpha=0.15, lw=0)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("layer that votes")
    axis.set_ylabel("tokens that have to go on, %")
    axis.legend(frameon=False, fontsize=8)
    plain(axis)
    first = found.first
    claim = "No layer finds it" if first is None else f"Layer {first[0]} is the first to find what is asked for"
    figure.suptitle(claim, x=0.01, ha="left", fontweight="bold", fontsize=12)
    shaded = f"{title}; shaded: up to what is enough in {100 * MOST:g} % of them"
    axis.set_title(shaded, loc="left", fontsize=9, color=GREY)
    save(figure, path)
