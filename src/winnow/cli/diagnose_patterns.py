"""`winnow diagnose patterns`: which pattern of attention each head has, searched on a text, for `minference`."""

from collections import Counter
from dataclasses import asdict

from winnow.cli.commands.look import Patterns
from winnow.cli.deliver import Record, deliver
from winnow.cli.inputs import fitted_ids, read_prompt
from winnow.cli.options import JsonOptions
from winnow.cli.tables import facts
from winnow.cli.terminal import Meter
from winnow.diagnosis.patterns import search_patterns
from winnow.errors import InputError
from winnow.evaluation.evaluate import environment
from winnow.learn.directory import check_fresh
from winnow.plan import Plan
from winnow.runtime.head_patterns import FILE, HeadPatterns


def patterns(options: Patterns) -> int:
    """Search and write them; returns the exit code."""
    if options.file is None:
        raise InputError("patterns are searched on a text; give one with --file")
    check_fresh(options.out)
    prompt = read_prompt(options)
    llm = options.load()
    ids = fitted_ids(llm, prompt, options.chat, options.truncate, 1, [Plan()])
    with Meter("searching", llm.decoder.shape.layers) as meter:
        found = search_patterns(llm, ids, progress=meter.advance)
    found.save(options.out)
    shown = facts(f"patterns of {options.model_name}", _counted(found), "heads", f"written: {options.out / FILE}")
    figures = {"out": str(options.out), "files": [FILE], **asdict(found)}
    about = environment(llm, options.model_name)
    return deliver(Record("diagnose patterns", figures, shown, about=about), JsonOptions(as_json=options.as_json))


def _counted(found: HeadPatterns) -> dict[str, str]:
    """Of every pattern, how many heads have it and how much of their attention it holds at least."""
    shares: dict[str, list[float]] = {}
    for heads, held in zip(found.layers, found.shares, strict=True):
        for pattern, share in zip(heads, held, strict=True):
            sizes = f"({pattern.first}, {pattern.second})" if pattern.second else f"({pattern.first})"
            shares.setdefault(f"{pattern.kind}{sizes}", []).append(share)
    counts = Counter({name: len(each) for name, each in shares.items()})
    return {name: f"{count} heads, {100 * min(shares[name]):.1f} % or more" for name, count in counts.most_common()}
