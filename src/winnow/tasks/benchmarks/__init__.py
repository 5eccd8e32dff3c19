"""Published benchmarks in their published files: LongBench, InfiniteBench, L-Eval; prompts and scores as published.

>>> asked = questions("longbench", "LongBench/data", ["qasper"])
>>> ids, before = fit(asked[0], tokenizer, limit=31500)
>>> asked[0].score("unanswerable")
"""

from collections.abc import Sequence
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.benchmarks.infinitebench import INFINITEBENCH
from winnow.tasks.benchmarks.leval import LEVAL
from winnow.tasks.benchmarks.longbench import LONGBENCH
from winnow.tasks.benchmarks.question import Benchmark, Dataset, Question, fit
from winnow.tasks.rows import existing_directory

__all__ = ["BENCHMARKS", "Benchmark", "Dataset", "Question", "fit", "questions"]

BENCHMARKS = {each.name: each for each in (LONGBENCH, INFINITEBENCH, LEVAL)}


def questions(benchmark: str, directory: str | Path, datasets: Sequence[str] = ()) -> list[Question]:
    """The questions of `datasets`, or of all that have a file in `directory` or in one of its folders, in their order.

    Raises:
        InputError: an unknown benchmark or dataset, no file of one, or a malformed line; names file and line.
        MissingExtraError: a dataset is scored over Chinese words, and jieba is not installed.
    """
    if benchmark not in BENCHMARKS:
        raise InputError(f"no benchmark is called {benchmark!r}; there are {', '.join(BENCHMARKS)}")
    chosen = BENCHMARKS[benchmark]
    if unknown := [name for name in datasets if name not in chosen.datasets]:
        raise InputError(f"{benchmark} has no dataset {unknown[0]!r}; it has {', '.join(chosen.datasets)}")
    folder = existing_directory(directory)
    files = {name: path for name in chosen.datasets if (path := _file(folder, name))}
    if missing := [name for name in datasets if name not in files]:
        raise InputError(f"{folder} holds no {missing[0]}.jsonl, nor does a folder in it; give the directory that does")
    if not files:
        raise InputError(f"{folder} holds no file of {benchmark}, such as {next(iter(chosen.datasets))}.jsonl")
    found: list[Question] = []
    for name in dict.fromkeys(datasets or files):
        asked = chosen.load(files[name], name, chosen.datasets[name])
        if not asked:
            raise InputError(f"{files[name]} holds no question that can be scored here; leave it out")
        found += asked
    return found


def _file(folder: Path, name: str) -> Path | None:
    patterns = [f"{prefix}{name}{suffix}" for prefix in ("", "*/") for suffix in (".jsonl", ".jsonl.gz")]
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)
