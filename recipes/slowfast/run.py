"""One arm on one task: measured example by example, and kept in a file; what is done is not done again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from recipes.records import Record, read_record, write_record

from winnow import LLM
from winnow.evaluation.evaluate import Case, answer, cases, environment
from winnow.plan import Plan
from winnow.stats import Stats

from .arms import TASKS, Arm
from .forced import forced
from .matching import Costs

MODEL = "needle"
COUNTED = ("slow_steps", "fast_steps", "units_read", "units_full", "aux_bytes", "total_bytes", "new_tokens")


@dataclass(frozen=True)
class Job:
    """An arm, a name of `TASKS` and a length of prompts in tokens."""

    arm: Arm
    task: str
    length: int

    @property
    def name(self) -> str:
        """Also that of its file."""
        return record_name(self.arm.name, self.task, self.length)


class Bench:
    """A model and the examples that all arms see. haystack: a directory of texts, or None: the bundled ones."""

    def __init__(self, llm: LLM, examples: int, haystack: str | None = None) -> None:
        self.llm, self.examples, self.haystack = llm, examples, haystack
        self.cases = cache(self._cases)

    def check(self, job: Job) -> None:
        """Raise where a job cannot be run; the plan of an arm that is matched with another is known only later."""
        if job.arm.like is None:
            case = self.cases(job.task, job.length)[0]
            self.llm.check([case.ids], case.params, plan=job.arm.text(job.length))

    def measure(self, job: Job, out: Path) -> str:
        """Measure the examples of a job that its file in `out` does not hold; returns what was done, in words."""
        costs = None
        if job.arm.like is not None:
            like = read_record(out / f"{record_name(job.arm.like, job.task, job.length)}.json")
            if like is None:
                return f"{job.name}: left out; it needs the measurement of {job.arm.like}"
            costs = costs_of(like)
        plan = Plan.parse(job.arm.text(job.length, costs))
        file = out / f"{job.name}.json"
        head = {
            "arm": job.arm.name,
            "task": job.task,
            "length": job.length,
            "plan": str(plan),
            "haystack": self.haystack,
        }
        record = read_record(file)
        rows = [] if record is None or any(record[key] != value for key, value in head.items()) else record["rows"]
        if len(rows) >= self.examples:
            return f"{job.name}: there already"
        todo = self.cases(job.task, job.length)[len(rows) :]
        rows += _forced(self.llm, plan, todo) if TASKS[job.task].forced else _free(self.llm, plan, todo)
        shape = self.llm.decoder.shape
        known = {"layers": shape.layers, "kv_heads": shape.kv_heads, "environment": environment(self.llm, MODEL)}
        write_record(file, {**head, **known, "rows": rows})
        score = sum(row["score"] for row in rows) / len(rows)
        return f"{job.name}: {100 * score:.1f} of {len(rows)} examples"

    def _cases(self, name: str, length: int) -> list[Case]:
        return list(cases(self.llm, [TASKS[name].make(self.haystack)], [length], self.examples))


def record_name(arm: str, task: str, length: int) -> str:
    """Of the measurement of an arm on a task."""
    return f"{arm.replace(',', '').replace(' ', '-').replace('/', '-')}--{task}--{length}"


def costs_of(record: Record) -> Costs:
    """The mean costs of a measured arm."""
    rows = record["rows"]
    steps = tuple(row["slow_steps"] + row["fast_steps"] for row in rows)
    slow, read, kept = (sum(row[name] for row in rows) for name in ("slow_steps", "units_read", "units_full"))
    places = sum(steps) * record["layers"] * record["kv_heads"]
    return Costs(steps, slow, read / places, kept / places, record["layers"])


def _free(llm: LLM, plan: Plan, todo: list[Case]) -> Iterator[Record]:
    for each in answer(llm, [plan], iter(todo)):
        assert each.score is not None
        yield _row(each.index, each.score, each.found, each.stats)


def _forced(llm: LLM, plan: Plan, todo: list[Case]) -> Iterator[Record]:
    for case in todo:
        found, stats = forced(llm, plan, case)
        yield _row(case.index, sum(found) / len(found), found, stats)


def _row(index: int, score: float, found: tuple[bool, ...], stats: Stats) -> Record:
    costs = asdict(stats)
    return {"index": index, "score": score, "found": list(found), **{name: costs[name] for name in COUNTED}}
