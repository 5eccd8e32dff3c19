"""`winnow chat`: a conversation on the terminal."""

import sys

from winnow.cli.commands.prompts import Chat
from winnow.cli.inputs import parse_plan
from winnow.cli.stats_view import stats_table
from winnow.cli.terminal import Meter, console, interruptible, say
from winnow.engine.request import Completion
from winnow.errors import InputError, WinnowError
from winnow.reading import read_text
from winnow.runtime.llm import LLM, Message

RESET = "/reset"
HINT = f"type a message; {RESET} forgets what was said, an empty line or Ctrl-D ends"


def chat(options: Chat) -> int:
    """Read messages until one is empty, and answer each; returns the exit code."""
    plan = None if options.plan is None else parse_plan(options.plan)
    if options.sampling.n != 1:
        raise InputError(f"--n {options.sampling.n}: a conversation goes on from one answer; leave it out")
    document = None if options.file is None else read_text(options.file).rstrip("\n")
    llm = options.load()
    if llm.tokenizer is None or not llm.tokenizer.chat_template:
        raise InputError(f"{options.model_name} has no chat template; use winnow run")
    llm.prepare(plan)
    if sys.stdin.isatty():
        say(HINT)
    said = _begin(options.system)
    while (text := _ask()) is not None:
        if text == RESET:
            said = _begin(options.system)
            continue
        first = all(message["role"] == "system" for message in said)
        content = f"{document}\n\n{text}" if document and first else text
        try:
            answer = _answer(llm, [*said, {"role": "user", "content": content}], options)
        except WinnowError as error:  # such as a conversation that has become too long: nothing of it is lost
            say(f"error: {error}")
            continue
        said += [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    return 0


def _begin(system: str | None) -> list[Message]:
    return [] if system is None else [{"role": "system", "content": system}]


def _ask() -> str | None:
    """The next message; None: there is no other."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() or None


def _answer(llm: LLM, messages: list[Message], options: Chat) -> str:
    """Stream the answer; Ctrl-C ends it, and what was said stays."""
    ids, pieces, ended = llm.render(messages), list[str](), list[Completion]()
    plan = None if options.plan is None else parse_plan(options.plan)
    with Meter("reading", len(ids)) as meter, interruptible():
        for piece in llm.stream(ids, options.sampling, plan=plan, progress=meter.advance, on_finish=ended.append):
            meter.stop()
            pieces.append(piece)
            print(piece, end="", flush=True)
    print()
    if options.stats and ended:
        console(stderr=True).print(stats_table(ended[0].stats, str(plan or llm.plan)))
    return "".join(pieces)
