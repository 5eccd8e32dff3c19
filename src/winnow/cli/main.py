"""The command `winnow`: its commands, each imported when it is called, and how every error ends it."""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Any, get_args, get_origin

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, Token, convert
from cyclopts.exceptions import UnknownOptionError, UnusedCliTokensError

from winnow.cli.command import INTERRUPTED
from winnow.cli.leaving import leave
from winnow.errors import WinnowError, out_of_memory

COMMANDS = {
    "run": ("prompts:Run", "Continue a prompt; the text appears as it is made."),
    "chat": ("prompts:Chat", "Talk with a model, each turn over what was said before."),
    "serve": ("serve:Serve", "Answer OpenAI's API over HTTP, each request under a plan."),
    "compare": ("compare:Compare", "Answer the same questions under several plans, and beside peers."),
    "demo": ("compare:Demo", "Ask a pre-trained model about a real document under several plans."),
    "eval": ("evaluate:app", "Score plans: on tasks, a benchmark, lm_eval's tasks, or by fidelity to a text."),
    "tune": ("compare:Tune", "Find the fastest plan that keeps to limits on prompts of yours."),
    "train": ("train:app", "Make a model, an adapter or another trained part that a plan needs."),
    "diagnose": ("look:app", "What the layers do with a prompt, or how steady what they attend to is."),
    "inspect": ("look:Inspect", "Draw which tokens each layer computed, reused, parked and revived."),
    "plans": ("models:Plans", "List the policies that plans are made of."),
    "import": ("models:Import", "Convert a GGUF file into a model directory."),
    "cache": ("models:app", "Show or remove the GGUF files that were converted when first loaded."),
    "fit": ("models:Fit", "Say what memory a text takes under plans, and how long a text fits."),
    "inspect-model": ("models:InspectModel", "Show what a model is, and how its weights are held."),
}


def new_app(name: str, about: str) -> App:
    """An application whose commands are dataclasses that are called once their fields are filled from what was typed.

    What is wrong with what was typed is raised.
    """
    return App(
        name=name,
        help=about,
        help_format="plaintext",
        version=lambda: version("winnow-llm"),
        default_parameter=Parameter(negative=(), allow_repeating=True, show_default=_shown, converter=_converted),
        result_action="call_if_callable",
        exit_on_error=False,
        print_error=False,
    )


def _converted(kind: Any, tokens: Sequence[Token]) -> Any:
    """cyclopts' own conversion, but that 1.5 is no whole number: it would be rounded."""
    leaves = set(_leaves(kind))
    if int in leaves and float not in leaves and (bad := [token.value for token in tokens if "." in token.value]):
        raise ValueError(f"{bad[0]} is no whole number")
    return convert(kind, tokens)


def _leaves(kind: Any) -> Iterator[Any]:
    inside = [each for each in get_args(kind) if each is not Ellipsis]
    if get_origin(kind) is Annotated:
        inside = inside[:1]
    if not inside:
        yield kind
    for each in inside:
        yield from _leaves(each)


def _shown(value: object) -> str | None:
    """How a default is shown in the help; None: not at all, since the text says what it means."""
    return None if value is None or value is False or value == () else str(value)


app = new_app("winnow", "Long-context inference that spends only on the tokens that matter.")
for _name, (_place, _about) in COMMANDS.items():
    app.command(f"winnow.cli.commands.{_place}", name=_name, help=_about)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 an error on one line of standard error, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")  # an answer may have any character
    leave(run_app(app, arguments))


def run_app(application: App, arguments: Sequence[str] | None = None) -> int:
    """The exit code of what was typed."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return int(application(typed) or 0)
    except MissingArgumentError as error:
        return _fail(_missing(error))
    except UnusedCliTokensError as error:
        left = " ".join(error.unused_tokens or ())
        return _fail(f"{left!r} is left over; put a text of several words in quotes, and a command before its options")
    except UnknownOptionError as error:
        text = "--" in typed or any(each.startswith("-") and " " in each for each in typed)
        behind = " A text that begins with - goes behind --, and options before that." if text else ""
        return _fail(f"{error}{behind}")
    except (WinnowError, CycloptsError) as error:
        return _fail(str(error))
    except SystemExit as end:
        return int(end.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno != errno.EPIPE:
            if error.filename is None and error.errno != errno.ENOSPC:
                raise
            return _fail(f"{error.filename or 'cannot write'}: {error.strerror}")  # such as a disk that fills up
        # Whoever read our output has gone: send what is still buffered nowhere, instead of failing again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return _fail(f"{error}; use a shorter prompt, a smaller --prefill-chunk, or a plan that bounds the cache")


def _missing(error: MissingArgumentError) -> str:
    """Which argument is missing, as the help calls it."""
    argument, command = error.argument, " ".join(("winnow", *(error.command_chain or ()), "--help"))
    if argument is None:
        return f"an argument is missing; see {command}"
    name = argument.name if argument.index is None else argument.name.lstrip("-").upper()
    return f"{name} is missing, or stands without a value; see {command}"


def _fail(message: str) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return 2
