"""`winnow train indexer`: indexers for a model."""

from collections.abc import Mapping

from winnow.cli.commands.train import Indexer
from winnow.cli.training import cost, train
from winnow.learn.indexers import train_indexers
from winnow.learn.run import Report


def indexer(options: Indexer) -> int:
    """Train indexers; returns the exit code."""
    llm = options.load()
    return train(
        "train indexer",
        options,
        lambda progress: train_indexers(
            llm,
            options.data,
            options.out,
            options.recipe,
            validation=options.validation,
            resume=options.resume,
            progress=progress,
        ),
        _told,
        f"use them: --plan \"indexer(trained='{options.out}')\"",
    )


def _told(made: Report) -> tuple[str, Mapping[str, str]]:
    """What was made, from what, at what cost."""
    result = made.record["result"]
    values = {
        "loss, first": f"{result['loss_first']:.4f}",
        "loss, last": f"{result['loss_last']:.4f}",
        "attention on the best tenth, first": f"{result['mass_first']:.1%}",
        "attention on the best tenth, last": f"{result['mass_last']:.1%}",
        **cost(made),
    }
    if held_out := result["held_out"]:
        values["held out"] = f"loss {held_out['loss']:.4f}, {held_out['mass']:.1%} on the best tenth"
    return f"indexers for {made.record['base']['name']}", values
