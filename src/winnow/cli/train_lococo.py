"""`winnow train lococo`: convolutions for a model."""

from collections.abc import Mapping

from winnow.cli.commands.train import LoCoCo
from winnow.cli.training import cost, train
from winnow.learn.convolutions import train_convolutions
from winnow.learn.run import Report


def lococo(options: LoCoCo) -> int:
    """Train convolutions; returns the exit code."""
    recipe = options.recipe
    llm = options.load(weights="dense" if options.weights == "auto" else options.weights)  # gradients pass through
    return train(
        "train lococo",
        options,
        lambda progress: train_convolutions(
            llm, options.data, options.out, recipe, resume=options.resume, progress=progress
        ),
        _told,
        f"use them: --plan \"lococo(budget={recipe.budget}, chunk={recipe.chunk}, convolutions='{options.out}')\"",
    )


def _told(made: Report) -> tuple[str, Mapping[str, str]]:
    """What was made, from what, at what cost."""
    result = made.record["result"]
    return f"convolutions for {made.record['base']['name']}", {
        "loss, first": f"{result['loss_first']:.4f} nats per token",
        "loss, last": f"{result['loss_last']:.4f}",
        **cost(made, "texts"),
    }
