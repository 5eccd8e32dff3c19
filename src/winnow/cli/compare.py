"""`winnow compare`: plans side by side, on retrieval tasks or on a document of your own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from winnow.cli.commands.compare import Compare
from winnow.cli.compare_peers import Typed, compare_with_peers, peer_record, refuse_adapter
from winnow.cli.compare_plot import plot_comparison
from winnow.cli.compare_view import show
from winnow.cli.deliver import Record as Delivered
from winnow.cli.deliver import deliver
from winnow.cli.inputs import Prompt, check_outputs, fitted_ids, make_tasks, parse_plans, read_prompt, refuse
from winnow.cli.options import EXAMPLES, TASKS
from winnow.cli.terminal import Meter, interruptible
from winnow.devices import parse_device
from winnow.evaluation.compare import compare as compare_tasks
from winnow.evaluation.compare import compare_document, document_case, finished, summarise, with_full
from winnow.evaluation.evaluate import Record, cases, check_lengths, environment
from winnow.evaluation.fidelity import Fidelity, fidelity
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.tasks import Task

ANSWER_TOKENS = 128


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
            "plans": [str(plan) for plan in self.plans],
            "summary": [row.to_dict() for row in summarise(judged)],
            "fidelity": [each.to_dict() for each in self.fidelities],
            "records": [record.to_dict() for record in self.records],
        }


def compare(options: Compare) -> int:
    """Answer the same questions under several plans, and by peers; returns the exit code."""
    report = Report(with_full(parse_plans(options.plan)))
    asked, tasks = _asked(options)
    peers = Typed(options.peer, options.peer_python)
    if options.peer:
        peers.check(str(parse_device(options.device)), options.threads)
    llm = options.load()
    model, seed = options.model_name, options.seed
    about = {**environment(llm, model), "adapter": options.adapter, "seed": seed}
    answer = options.max_tokens or ANSWER_TOKENS
    ids = [] if asked is None else fitted_ids(llm, asked, options.chat, options.truncate, answer, report.plans)
    lengths, examples = options.lengths if asked is None else [len(ids)], options.examples or EXAMPLES
    question = options.question or ""
    if options.peer:
        refuse_adapter(llm, options.adapter)
        check_lengths(llm, report.plans, lengths)
        made = cases(llm, tasks, lengths, examples, seed=seed, depths=(options.depth,))
        mine = [document_case(ids, question, answer)] if asked is not None else list(made)
        found = compare_with_peers(llm, report.plans, peers, mine, seed, options.weights)
        return deliver(peer_record(found, about), options)
    each = len(report.plans) * (len(tasks) * examples if tasks else 1)  # answers per length
    with Meter("comparing", sum(lengths) * each) as meter, interruptible():
        if asked is None:
            answered = compare_tasks(
                llm, report.plans, tasks, lengths, examples, seed=seed, depths=(options.depth,), progress=meter.advance
            )
        else:
            answered = compare_document(llm, report.plans, ids, question, answer, seed=seed, progress=meter.advance)
        _collect(report, answered, each * len(lengths), meter)
        if asked is not None:
            _add_fidelity(llm, report, ids)
        report.complete = True
    return deliver(_record(report, about), options)


def _asked(options: Compare) -> tuple[Prompt | None, list[Task]]:
    """The document, or the tasks; what is about the other is refused."""
    check_outputs(options.out, options.plot)
    if not options.peer:
        refuse("is about --peer only", {"--peer-python": options.peer_python})
    if options.file is not None:
        refuse("about tasks, not about --file", {**options.about_tasks, "--depth": options.depth})
        return read_prompt(options), []
    about_file = {"--question": options.question, "--max-tokens": options.max_tokens, "--chat": options.chat}
    refuse("about --file FILE only", {**about_file, "--truncate": options.truncate})
    return None, make_tasks(options.task or TASKS, options.data, options.haystack)


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


def _record(report: Report, about: dict[str, Any]) -> Delivered:
    judged = finished(report.records, len(report.plans))
    rows = summarise(judged)
    draw = partial(plot_comparison, rows=rows) if rows else None
    shown = partial(show, rows, judged, report.fidelities, about["model"])
    return Delivered("compare", report.to_dict(), shown, draw, report.complete, about)
