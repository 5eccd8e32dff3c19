"""`winnow train locret`: retaining heads for a model."""

from collections.abc import Mapping

from winnow.cli.commands.train import Locret
from winnow.cli.training import left_out, train
from winnow.learn.heads import HeadsReport, train_heads


def locret(options: Locret) -> int:
    """Train retaining heads; returns the exit code."""
    llm = options.load()
    return train(
        "train locret",
        options,
        lambda progress: train_heads(
            llm,
            options.data,
            options.out,
            options.recipe,
            validation=options.validation,
            resume=options.resume,
            progress=progress,
        ),
        _told,
        f"use them: --plan \"locret(budget=1024, heads='{options.out}')\"",
    )


def _told(made: HeadsReport) -> tuple[str, Mapping[str, str]]:
    """What was made, from what, at what cost."""
    result, data = made.record["result"], made.record["data"]
    values = {
        "loss, first": f"{result['loss_first']:.4f}",
        "loss, last": f"{result['loss_last']:.4f}",
        "overlap, first": f"{result['overlap_first']:.1%} of the best tenth",
        "overlap, last": f"{result['overlap_last']:.1%}",
        "steps": f"{result['steps']:,}",
        "tokens": f"{result['tokens']:,}",
        "samples": f"{data['samples']:,}{left_out(data)}",
        "time": f"{result['seconds']:.1f} s",
    }
    if held_out := result["held_out"]:
        values["held out"] = f"loss {held_out['loss']:.4f}, overlap {held_out['overlap']:.1%}"
    return f"retaining heads for {made.record['base']['name']}", values
