"""The command `winnow`: its commands, and how every error ends it."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import torch
import typer

import winnow
from winnow.cli.bench import app as bench
from winnow.cli.compare import compare
from winnow.cli.converted import cache, import_file
from winnow.cli.demo import demo
from winnow.cli.diagnose import diagnose
from winnow.cli.evaluate import evaluate
from winnow.cli.inspect import inspect
from winnow.cli.inspect_model import inspect_model
from winnow.cli.plans import plans
from winnow.cli.run import run
from winnow.cli.train import app as train
from winnow.cli.tune import tune
from winnow.errors import WinnowError

INTERRUPTED = 130  # 128 + SIGINT
# click's UsageError: newer typer bundles click and does not export it, older typer depends on it.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(name="winnow", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(run)
app.command()(compare)
app.command()(demo)
app.command("eval")(evaluate)
app.command()(diagnose)
app.command()(inspect)
app.command("inspect-model")(inspect_model)
app.command("import")(import_file)
app.command()(plans)
app.command()(tune)
app.add_typer(bench, name="bench")
app.add_typer(cache, name="cache")
app.add_typer(train, name="train")


def _version(wanted: bool) -> None:
    if wanted:
        print(winnow.__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Long-context inference of Hugging Face decoders that spends only on the tokens that matter."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 an error on one line of standard error, 130 after Ctrl-C."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        return app(arguments, prog_name="winnow", standalone_mode=False) or 0
    except WinnowError as error:
        return _fail(str(error))
    except UsageError as error:
        return _fail(error.format_message())  # type: ignore[attr-defined]
    except torch.OutOfMemoryError as error:
        return _fail(f"{error}; use a shorter prompt, a smaller --prefill-chunk, or a plan that bounds the cache")
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        if error.errno != errno.EPIPE:
            if error.filename is None and error.errno != errno.ENOSPC:
                raise
            return _fail(f"{error.filename or 'cannot write'}: {error.strerror}")  # such as a disk that fills up
        # Whoever read our output has gone: send what is still buffered nowhere, instead of failing again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _fail(message: str) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return 2
