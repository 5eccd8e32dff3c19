"""`winnow compare`: plans side by side, on retrieval tasks or on a document of your own."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from winnow.bench.compare import compare as compare_tasks
from winnow.bench.compare import compare_document, document_case, finished, summarise, with_full
from winnow.bench.evaluate import Record, cases, check_lengths, environment
from winnow.bench.fidelity import Fidelity, fidelity
from winnow.cli import options
from winnow.cli.compare_peers import Peers, Pythons, Typed, compare_with_peers, deliver_peers, refuse_adapter
from winnow.cli.compare_view import show
from winnow.cli.inputs import check_outputs, fitted_ids, load_model, make_tasks, parse_plans, read_prompt, refuse
from winnow.cli.plot import plot_comparison
from winnow.cli.run import Chat
from winnow.cli.terminal import Meter, interruptible, print_json, write_json
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.runtime.loading import parse_device

ANSWER_TOKENS = 128

Depth = Annotated[
    float | None, typer.Option(min=0, max=1, help="Where the needle stands, 0 to 1.  [default: drawn anew each time]")
]
Document = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="Your own document in place of tasks; no scores.")
]
Question = Annotated[str | None, typer.Option("--question", "-q", help="What to ask about --file.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The longest answer about --file.  [default: 128]")]


@dataclass
class Report:
    """What a comparison has come to so far."""

    plans: list[Plan]
    records: list[Record] = field(default_factory=list)
    fidelities: list[Fidelity] = field(default_factory=list)
    complete: bool = False

    def to_dict(self) -> dict[str, Any]:
        judged = finished(self.records, len(self.plans))
        return {
            "command": "compare",
            "complete": self.complete,
            "plans": [str(plan) for plan in self.plans],
            "summary": [row.to_dict() for row in summarise(judged)],
            "fidelity": [each.to_dict() for each in self.fidelities],
            "records": [record.to_dict() for record in self.records],
        }


def compare(
    plan: options.Plans = None,
    peer: Peers = None,
    peer_python: Pythons = None,
    task: options.Tasks = None,
    length: options.Lengths = None,
    examples: options.Examples = None,
    depth: Depth = None,
    file: Document = None,
    question: Question = None,
    max_tokens: MaxTokens = None,
    chat: Chat = None,
    truncate: options.Truncate = None,
    data: options.Data = None,
    haystack: options.Haystack = None,
    model: options.Model = None,
    adapter: options.Adapter = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    weights: options.Weights = "auto",
    prefill_chunk: options.PrefillChunk = None,
    as_json: options.Json = False,
    out: options.Out = None,
    plot: options.Plot = None,
) -> None:
    """Answer the same questions under several plans: quality, time and memory next to full attention, and to peers."""
    report = Report(with_full(parse_plans(plan)))
    check_outputs(out, plot)
    if not peer:
        refuse("is about --peer only", {"--peer-python": peer_python})
    if file is None:
        about_file = {"--question": question, "--max-tokens": max_tokens, "--chat": chat, "--truncate": truncate}
        refuse("about --file FILE only", about_file)
    else:
        about_tasks = {"--task": task, "--length": length, "--examples": examples, "--depth": depth}
        refuse("about tasks, not about --file", {**about_tasks, "--data": data, "--haystack": haystack})
    asked = None if file is None else read_prompt(None, file, question)
    tasks = make_tasks(task or options.TASKS, data, haystack) if asked is None else []
    peers = Typed(peer or (), peer_python or ())
    if peer:
        peers.check(str(parse_device(device)), threads)
    llm = load_model(model, device, dtype, threads, prefill_chunk, adapter, weights)
    model = options.named(model)
    about = {**environment(llm, model), "adapter": adapter, "seed": seed}
    answer = max_tokens or ANSWER_TOKENS
    ids = [] if asked is None else fitted_ids(llm, asked, chat, truncate, answer, report.plans)
    lengths = list(dict.fromkeys(length or options.LENGTHS)) if asked is None else [len(ids)]
    examples = examples or options.EXAMPLES
    if peer:
        refuse_adapter(llm, adapter)
        check_lengths(llm, report.plans, lengths)
        made = cases(llm, tasks, lengths, examples, seed=seed, depths=(depth,))
        mine = [document_case(ids, question or "", answer)] if asked is not None else list(made)
        deliver_peers(compare_with_peers(llm, report.plans, peers, mine, seed, weights), about, as_json, out, plot)
        return
    each = len(report.plans) * (len(tasks) * examples if tasks else 1)  # answers per length
    with Meter("comparing", sum(lengths) * each) as meter, interruptible():
        if asked is None:
            answered = compare_tasks(
                llm, report.plans, tasks, lengths, examples, seed=seed, depths=(depth,), progress=meter.advance
            )
        else:
            answered = compare_document(
                llm, report.plans, ids, question or "", answer, seed=seed, progress=meter.advance
            )
        _collect(report, answered, each * len(lengths), meter)
        if asked is not None:
            _add_fidelity(llm, report, ids)
        report.complete = True
    _deliver(report, about, as_json, out, plot)
    if not report.complete:
        print("interrupted; this is what was finished", file=sys.stderr)
        raise typer.Exit(130)


def _collect(report: Report, made: Iterator[Record], answers: int, meter: Meter) -> None:
    for record in made:
        report.records.append(record)
        if len(report.records) % len(report.plans) == 0:
            meter.note(f"{len(report.records)} of {answers} answers")


def _add_fidelity(llm: LLM, report: Report, ids: Sequence[int]) -> None:
    """Each plan against full attention, on the answer that full attention gave."""
    answer = next(record.token_ids for record in report.records if record.plan == "full")
    for plan in report.plans:
        if not plan.is_full:
            report.fidelities.append(fidelity(llm, [*ids, *answer], plan, len(ids)))


def _deliver(report: Report, about: dict[str, Any], as_json: bool, out: Path | None, plot: Path | None) -> None:
    document = {**report.to_dict(), **about}
    if out is not None:
        write_json(out, document)
    judged = finished(report.records, len(report.plans))
    rows = summarise(judged)
    if plot is not None and rows:
        plot_comparison(plot, rows)
    if as_json:
        print_json(document)
    else:
        show(rows, judged, report.fidelities, about["model"])
