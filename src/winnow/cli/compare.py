"""`winnow compare`: plans side by side, on retrieval tasks or on a document of your own."""

from functools import partial

from winnow.cli.commands.compare import Compare
from winnow.cli.compare_peers import Typed, compare_with_peers, refuse_adapter
from winnow.cli.compare_plot import plot_comparison
from winnow.cli.compare_view import show
from winnow.cli.deliver import Record as Delivered
from winnow.cli.deliver import deliver
from winnow.cli.inputs import Prompt, fitted_ids, make_tasks, parse_plans, read_prompt, refuse
from winnow.cli.options import EXAMPLES, TASKS
from winnow.cli.terminal import collect
from winnow.devices import parse_device
from winnow.evaluation.compare import compare_document, document_case, finished, summarise, with_full
from winnow.evaluation.evaluate import Record, cases, check_lengths, environment, evaluate
from winnow.evaluation.fidelity import Fidelity, fidelities
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.tasks import Task

ANSWER_TOKENS = 128


def compare(options: Compare) -> int:
    """Answer the same questions under several plans, and by peers; returns the exit code."""
    given = parse_plans(options.plan)
    asked, tasks = _asked(options)
    peers = Typed(options.peer, options.peer_python)
    if options.peer:
        peers.check(str(parse_device(options.device)), options.threads)
    llm = options.load()
    plans = with_full(given or [llm.plan])
    model, seed = options.model_name, options.seed
    about = {**environment(llm, model), "adapter": options.adapter, "seed": seed}
    answer = options.max_tokens or ANSWER_TOKENS
    ids = [] if asked is None else fitted_ids(llm, asked, options.chat, options.truncate, answer, plans)
    lengths, examples = options.lengths if asked is None else [len(ids)], options.examples or EXAMPLES
    question = options.question or ""
    if options.peer:
        refuse_adapter(llm, options.adapter)
        check_lengths(llm, plans, lengths)
        made = cases(llm, tasks, lengths, examples, seed=seed, depths=(options.depth,))
        mine = [document_case(ids, question, answer)] if asked is not None else list(made)
        return deliver(compare_with_peers(llm, plans, peers, mine, seed, options.weights, about), options)
    if asked is None:
        ask = partial(evaluate, llm, with_full(plans), tasks, lengths, examples, seed=seed, depths=(options.depth,))
    else:
        ask = partial(compare_document, llm, plans, ids, question, answer, seed=seed)
    of_length = len(plans) * (len(tasks) * examples if tasks else 1)
    answers = of_length * len(lengths)
    records: list[Record] = collect("comparing", sum(lengths) * of_length, f"{answers} answers", ask, len(plans))
    complete, found = len(records) == answers, list[Fidelity]()
    if asked is not None and complete:
        found = _fidelities(llm, plans, ids, records)
        complete = len(found) == len(plans) - 1
    judged = finished(records, len(plans))
    rows = summarise(judged)
    figures = {
        "plans": [str(plan) for plan in plans],
        "summary": [row.to_dict() for row in rows],
        "fidelity": [each.to_dict() for each in found],
        "records": [record.to_dict() for record in records],
    }
    draw = partial(plot_comparison, rows=rows) if rows else None
    shown = partial(show, rows, judged, found, model)
    return deliver(Delivered("compare", figures, shown, draw, complete, about), options)


def _fidelities(llm: LLM, plans: list[Plan], ids: list[int], records: list[Record]) -> list[Fidelity]:
    """Of every plan but full attention, which comes first, along the answer that it gave."""
    if len(plans) == 1:
        return []
    text = [*ids, *next(record.token_ids for record in records if record.plan == "full")]
    follow = partial(fidelities, llm, text, plans, len(ids))
    return [each for each, _ in collect("measuring", len(text) * len(plans), f"{len(plans)} plans", follow)][1:]


def _asked(options: Compare) -> tuple[Prompt | None, list[Task]]:
    """The document, or the tasks; what is about the other is refused."""
    if not options.peer:
        refuse("is about --peer only", {"--peer-python": options.peer_python})
    if options.file is not None:
        refuse("about tasks, not about --file", {**options.about_tasks, "--depth": options.depth})
        return read_prompt(options), []
    about_file = {"--question": options.question, "--max-tokens": options.max_tokens, "--chat": options.chat}
    refuse("about --file FILE only", {**about_file, "--truncate": options.truncate})
    return None, make_tasks(options.task or TASKS, options.data, options.haystack)
