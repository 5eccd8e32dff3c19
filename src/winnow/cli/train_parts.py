"""`winnow train locret`, `kvzap`, `duo`, `lococo` and `indexer`: parts beside a model, which itself stays as it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from winnow.cli.commands.train import Duo, Heads, Indexer, KVzap, LoCoCo, Locret, Training
from winnow.cli.training import left_out, memory, train
from winnow.learn.convolutions import train_convolutions
from winnow.learn.gates import train_gates
from winnow.learn.heads import train_heads
from winnow.learn.indexers import train_indexers
from winnow.learn.run import Report
from winnow.runtime.heads import Target


@dataclass(frozen=True)
class Told:
    """How to say what a run came to. what: was trained, with what stands before the model's name; figures, held_out:
    formats of what is in the result beside the losses; unit: of the first loss; items: what the data is of."""

    what: str
    figures: Mapping[str, str]
    held_out: str = ""
    unit: str = ""
    items: str = "samples"

    def __call__(self, made: Report) -> tuple[str, Mapping[str, str]]:
        """A title, and what was made, from what, at what cost."""
        result, data = made.record["result"], made.record["data"]
        values = {
            "loss, first": f"{result['loss_first']:.4f}{self.unit}",
            "loss, last": f"{result['loss_last']:.4f}",
            **{name: form.format(**result) for name, form in self.figures.items()},
            "steps": f"{result['steps']:,}",
            "tokens": f"{result['tokens']:,}",
            self.items: f"{data['samples']:,}{left_out(data)}",
            "time": f"{result['seconds']:.1f} s",
            "memory": memory(result["peak_bytes"]),
        }
        if held_out := result["held_out"]:
            values["held out"] = self.held_out.format(**held_out)
        return f"{self.what} {made.record['base']['name']}", values


HEADS = Told(
    "retaining heads for",
    {"overlap, first": "{overlap_first:.1%} of the best tenth", "overlap, last": "{overlap_last:.1%}"},
    "loss {loss:.4f}, overlap {overlap:.1%}",
)
GATES = Told(
    "gates of the heads of",
    {"distance from full attention, last": "{distance_last:.4f}", "mean gate, last": "{gate_last:.3f}"},
    "loss {loss:.4f}, distance {distance:.4f}",
)
INDEXERS = Told(
    "indexers for",
    {f"attention on the best tenth, {end}": f"{{mass_{end}:.1%}}" for end in ("first", "last")},
    "loss {loss:.4f}, {mass:.1%} on the best tenth",
)
CONVOLUTIONS = Told("convolutions for", {}, unit=" nats per token", items="texts")


def locret(options: Locret) -> int:
    """Train heads that say how later tokens attend; returns the exit code."""
    return _heads(options, "locret", "logit", "budget=1024")


def kvzap(options: KVzap) -> int:
    """Train heads that say what a repetition needs; returns the exit code."""
    return _heads(options, "kvzap", "repeat", "threshold=-6")


def _heads(options: Heads, name: str, target: Target, parameters: str) -> int:
    """parameters: of the policy `name`, to show."""
    run = partial(train_heads, options.load(), recipe=options.recipe, target=target, validation=options.validation)
    return _train(options, name, run, HEADS, f"{parameters}, heads")


def duo(options: Duo) -> int:
    """Train gates; returns the exit code."""
    run = partial(train_gates, options.load_floats(), recipe=options.recipe, validation=options.validation)
    shown = f"sink={options.recipe.sink}, recent={options.recipe.recent}, gates"  # those that the gates are for
    return _train(options, "duo", run, GATES, shown)


def indexer(options: Indexer) -> int:
    """Train indexers; returns the exit code."""
    run = partial(train_indexers, options.load(), recipe=options.recipe, validation=options.validation)
    return _train(options, "indexer", run, INDEXERS, "trained")


def lococo(options: LoCoCo) -> int:
    """Train convolutions; returns the exit code."""
    recipe = options.recipe
    llm = options.load_floats()
    shown = f"budget={recipe.budget}, chunk={recipe.chunk}, convolutions"
    return _train(options, "lococo", partial(train_convolutions, llm, recipe=recipe), CONVOLUTIONS, shown)


def _train(options: Training, name: str, run: Callable[..., Report], told: Told, shown: str) -> int:
    """shown: of a policy's parameters up to the one that names the directory."""
    run = partial(run, data=options.data, out=options.out, resume=options.resume)
    use = f"use them: --plan \"{name}({shown}='{options.out}')\""
    return train(f"train {name}", options, lambda progress: run(progress=progress), told, use)
