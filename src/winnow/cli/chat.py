"""`winnow chat`: a conversation on the terminal."""

import sys
from contextlib import closing
from io import TextIOWrapper

from winnow.cli.commands.prompts import Chat
from winnow.cli.inputs import parse_plan
from winnow.cli.stats_view import stats_table
from winnow.cli.terminal import Meter, console, interruptible, say
from winnow.engine.engine import Engine
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
    if options.sampling.logprobs is not None:
        raise InputError("--logprobs: a conversation shows none; leave it out, or use winnow run")
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # what is no UTF-8 is refused as a message, and not the end
    document = None if options.file is None else read_text(options.file).rstrip("\n")
    llm = options.load()
    if llm.tokenizer is None or not llm.tokenizer.chat_template:
        raise InputError(f"{options.model_name} has no chat template; use winnow run")
    llm.prepare(plan)
    llm.check_sampling(options.sampling)  # what no message could go with
    if sys.stdin.isatty():
        say(HINT)
    with llm.engine(retain_bytes=int(options.retain_mib * 2**20)) as engine:
        failed = _converse(llm, engine, document, options)
    return 2 if failed and not sys.stdin.isatty() else 0


def _converse(llm: LLM, engine: Engine, document: str | None, options: Chat) -> bool:
    """Until there is no other message; whether one was not answered."""
    said, failed = _begin(options.system), False
    while (text := _ask()) is not None:
        if text == RESET:
            said = _begin(options.system)
            continue
        first = all(message["role"] == "system" for message in said)
        content = f"{document}\n\n{text}" if document and first else text
        try:
            answer = _answer(llm, engine, [*said, {"role": "user", "content": content}], options)
        except WinnowError as error:  # such as a conversation that has become too long: nothing of it is lost
            say(f"error: {error}")
            failed = True
            continue
        said += [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    return failed


def _begin(system: str | None) -> list[Message]:
    return [] if system is None else [{"role": "system", "content": system}]


def _ask() -> str | None:
    """The next message; None: there is no other."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() or None


def _answer(llm: LLM, engine: Engine, messages: list[Message], options: Chat) -> str:
    """Stream the answer; Ctrl-C ends it, and what was said stays."""
    plan = None if options.plan is None else parse_plan(options.plan)
    [request] = llm.check([llm.render(messages)], options.sampling, plan=plan)
    pieces, ended = list[str](), list[Completion]()
    with (
        Meter("reading", len(request.ids)) as meter,
        interruptible(),
        closing(engine.follow(request, meter.advance)) as outputs,
    ):
        for output in outputs:
            if output.text:
                meter.stop()
                pieces.append(output.text)
                print(output.text, end="", flush=True)
            if output.completion is not None:
                ended.append(output.completion)
    print()
    if options.stats and ended:
        console(stderr=True).print(stats_table(ended[0].stats, str(request.plan)))
    return "".join(pieces)
