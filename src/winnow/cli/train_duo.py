"""`winnow train duo`: gates of a model's KV heads."""

from collections.abc import Mapping

from winnow.cli.commands.train import Duo
from winnow.cli.training import cost, train
from winnow.learn.gates import train_gates
from winnow.learn.run import Report


def duo(options: Duo) -> int:
    """Train gates; returns the exit code."""
    llm = options.load()
    return train(
        "train duo",
        options,
        lambda progress: train_gates(
            llm,
            options.data,
            options.out,
            options.recipe,
            validation=options.validation,
            resume=options.resume,
            progress=progress,
        ),
        _told,
        f"use them: --plan \"duo(gates='{options.out}')\"",
    )


def _told(made: Report) -> tuple[str, Mapping[str, str]]:
    """What was made, from what, at what cost."""
    result = made.record["result"]
    values = {
        "loss, first": f"{result['loss_first']:.4f}",
        "loss, last": f"{result['loss_last']:.4f}",
        "distance from full attention, last": f"{result['distance_last']:.4f}",
        "mean gate, last": f"{result['gate_last']:.3f}",
        **cost(made),
    }
    if held_out := result["held_out"]:
        values["held out"] = f"loss {held_out['loss']:.4f}, distance {held_out['distance']:.4f}"
    return f"gates of the heads of {made.record['base']['name']}", values
