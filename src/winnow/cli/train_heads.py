"""`winnow train locret` and `winnow train kvzap`: retaining heads for a model."""

from collections.abc import Mapping

from winnow.cli.commands.train import Heads, KVzap, Locret
from winnow.cli.training import cost, train
from winnow.learn.heads import train_heads
from winnow.learn.run import Report
from winnow.runtime.heads import Target


def locret(options: Locret) -> int:
    """Train heads that say how later tokens attend; returns the exit code."""
    return _heads(options, "locret", "logit", "budget=1024")


def kvzap(options: KVzap) -> int:
    """Train heads that say what a repetition needs; returns the exit code."""
    return _heads(options, "kvzap", "repeat", "threshold=-6")


def _heads(options: Heads, name: str, target: Target, parameters: str) -> int:
    """parameters: of the policy `name`, to show."""
    llm = options.load()
    return train(
        f"train {name}",
        options,
        lambda progress: train_heads(
            llm,
            options.data,
            options.out,
            options.recipe,
            target=target,
            validation=options.validation,
            resume=options.resume,
            progress=progress,
        ),
        _told,
        f"use them: --plan \"{name}({parameters}, heads='{options.out}')\"",
    )


def _told(made: Report) -> tuple[str, Mapping[str, str]]:
    """What was made, from what, at what cost."""
    result = made.record["result"]
    values = {
        "loss, first": f"{result['loss_first']:.4f}",
        "loss, last": f"{result['loss_last']:.4f}",
        "overlap, first": f"{result['overlap_first']:.1%} of the best tenth",
        "overlap, last": f"{result['overlap_last']:.1%}",
        **cost(made),
    }
    if held_out := result["held_out"]:
        values["held out"] = f"loss {held_out['loss']:.4f}, overlap {held_out['overlap']:.1%}"
    return f"retaining heads for {made.record['base']['name']}", values
