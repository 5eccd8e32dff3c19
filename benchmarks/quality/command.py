"""`python -m benchmarks quality`: run, table and choose."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.commands.quality import Choose, Run, Table
from benchmarks.quality.arms import FULL, GRID, Arm, Grid, distinct_arms, read_arms
from benchmarks.quality.choose import RULE, choose
from benchmarks.quality.figures import place, score_rows, window_rows
from benchmarks.quality.header import adapter_hash, header, revision
from benchmarks.quality.measure import Adapted, Bench, check_all
from benchmarks.quality.plot import plot_quality
from benchmarks.quality.records import CONTINUED, Journal, Record, merged, read_journal
from benchmarks.quality.split import write_split
from benchmarks.quality.tasks import DATA, RULER, split_cases, split_seed, split_tasks
from benchmarks.quality.view import choices_table, tables
from benchmarks.record import Record as Delivered
from benchmarks.windows import windows
from winnow.cli.deliver import deliver
from winnow.cli.inputs import refuse
from winnow.cli.terminal import Meter, interruptible
from winnow.errors import InputError

# What headers agree in where records are shown together: else they say different things.
SAME = ("model", "weights_sha256", "adapter", "adapter_sha256", "split", "seed", "fed", "dtype", "prefill_chunk")


def run(options: Run) -> int:
    """Measure what a file of records does not hold yet, and show it; returns the exit code."""
    arms, commit = arms_of(options), revision(options.uncommitted)  # both before a model is loaded
    if not options.questions and not options.windows:
        raise InputError("--questions 0 and --windows 0 leave nothing to measure")
    with TemporaryDirectory() as made:
        write_split(options.data, options.split, Path(made))
        llm = options.load()
        if llm.tokenizer is None:
            raise InputError("the model has no tokenizer, so it can read no text; give one that has")
        settings = {"adapter": options.adapter, "split": options.split, "seed": options.seed, "fed": options.fed}
        if options.adapter is not None:
            settings["adapter_sha256"] = adapter_hash(options.adapter)
        used = {arm.adapter for arm in arms if arm.adapter is not None}
        adapted = {name: Adapted(options.load(adapter=name), adapter_hash(name)) for name in sorted(used)}
        known = header(llm, options.model_name, commit=commit, **settings)
        journal = Journal(options.records, known)
        wanted = len(arms) * len(set(options.length)) * (options.questions * len(_names(options)) + 6 * options.windows)
        complete = False
        with Meter("quality", wanted) as meter, interruptible():
            meter.advance(len(journal.records))
            for _ in _measured(options, Bench(llm, journal, arms, adapted), Path(made)):
                meter.advance(1)
                meter.note(f"{len(journal.records)} of up to {wanted} records")
            complete = True
    return _shown(options, "quality run", [journal.header], journal.records, complete=complete)


def table(options: Table) -> int:
    """Show what was recorded; returns the exit code."""
    headers, records = read_all(options.records)
    asked = _asked(options.but_for, headers[0])
    records = [record for record in records if record["kind"] != "answer" or not _places_of(record) & asked]
    for kind in ("answer", "window"):
        arms = dict.fromkeys(record["arm"] for record in records if record["kind"] == kind)
        if options.against is not None and arms and options.against not in arms:
            raise InputError(f"there is no {kind} of the arm {options.against!r} to compare with: {'; '.join(arms)}")
    return _shown(options, "quality table", headers, records, complete=True, against=options.against or FULL)


def choose_settings(options: Choose) -> int:
    """Choose a setting for each policy and cost; returns the exit code."""
    headers, records = read_all(options.records)
    if headers[0]["split"] != "validation":
        raise InputError("settings are chosen on validation, and these records are of the test")
    grid = Grid.read(options.grid or GRID)
    choices, told = choose(records, grid)
    figures = {"rule": RULE, "arms": [each.to_dict() for each in choices], "told": told, "headers": headers}
    return deliver(Delivered("quality choose", figures, choices_table(choices, told, RULE)), options)


def _asked(paths: Sequence[Path], header: Record) -> set[tuple[object, ...]]:
    """The questions of other files. Raises InputError where these have drawn theirs otherwise."""
    found = set()
    for path in paths:
        other, records = read_journal(path)
        if different := [name for name in ("split", "seed") if other.get(name) != header.get(name)]:
            name = different[0]
            raise InputError(
                f"--but-for {path} has {name} {other.get(name)!r} and the records {header.get(name)!r}, so their "
                "questions are not the same; give one that was measured alike"
            )
        found |= {each for record in records if record["kind"] == "answer" for each in _places_of(record)}
    return found


def _places_of(record: Record) -> set[tuple[object, ...]]:
    """What tells the question of an answer from others: its place, and what is asked, among whatever texts."""
    return {place(record), (record["task"], record["question"], *record["answers"])}


def read_all(paths: Sequence[Path]) -> tuple[list[Record], list[Record]]:
    """The headers, and the records of all files, each once. Raises InputError where they do not go together."""
    if not paths:
        raise InputError("no file of records is given; `quality run` writes them")
    files = [(path, *read_journal(path)) for path in paths]
    return [head for _, head, _ in files], list(merged(files, SAME))


def arms_of(options: Run) -> list[Arm]:
    """Full attention, and what is asked for. Raises InputError where there is nothing else, or what has no grid."""
    arms = [Arm.of(text) for text in options.plan]
    arms += read_arms(options.plans) if options.plans else []
    if options.grid is None:
        refuse("are of a grid; give one with --grid", {"--cost": options.cost, "--policy": options.policy})
    else:
        arms += Grid.read(options.grid).arms(options.cost, options.policy)
    if len(found := distinct_arms(arms)) == 1:
        raise InputError("there is no arm but full attention; give a --plan, --plans FILE, or --grid FILE")
    return found


def _names(options: Run) -> tuple[str, ...]:
    return options.task or (*RULER, *DATA)


def _measured(options: Run, bench: Bench, folder: Path) -> Iterator[Record]:
    """Every new record: what cannot be run, windows, then questions, length by length."""
    tasks, seed, llm = split_tasks(_names(options), folder, options.split), options.seed, bench.llm
    for length in dict.fromkeys(options.length):
        ask = partial(split_cases, llm, tasks, [length], seed=seed, split=options.split)
        followed = []
        if options.windows:
            drawn = split_seed(seed, options.split)
            assert llm.tokenizer is not None
            followed = windows(folder, llm.tokenizer, length + options.fed, options.windows, seed=drawn)
        first = next(ask(questions=1)) if options.questions else None
        check = check_all(first, followed[0] if followed else None, length)
        yield from bench.refuse(length, check)
        yield from bench.follow(followed, length)
        yield from bench.answer(ask(questions=options.questions))


def _shown(
    options: Run | Table,
    command: str,
    headers: Sequence[Record],
    records: Sequence[Record],
    *,
    complete: bool,
    against: str = FULL,
) -> int:
    scores, texts = score_rows(records, against), window_rows(records, against)
    refused = [record for record in records if record["kind"] == "refused"]
    figures = {
        "against": against,
        "scores": [row.to_dict() for row in scores],
        "windows": [row.to_dict() for row in texts],
        "refused": refused,
        "headers": headers,
    }
    first = headers[0]
    title = f"{first['model']}, {first['split']}"
    draw = partial(plot_quality, scores=scores, windows=texts, title=title) if scores or texts else None
    shown = tables(scores, texts, title, refused, against)
    # What the summary was made by is said by it anew; the code that the records are of is in their headers.
    about = {key: value for key, value in first.items() if key not in ("kind", "typed", "commit", CONTINUED)}
    return deliver(Delivered(command, figures, shown, draw, complete, about), options)
