"""One arm at one length: measured example by example, and kept in a file; what is done is not done again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.machine import machine
from recipes.records import Record, read_record, write_record

from winnow import LLM
from winnow.errors import WinnowError
from winnow.evaluation.about import commit
from winnow.evaluation.evaluate import Case, answer, cases, environment
from winnow.evaluation.evaluate import Record as Answer
from winnow.plan import Plan
from winnow.tasks import task

from .arms import TASKS, Arm

MODEL = "needle"
COSTS = (
    "rows_computed", "rows_full", "units_read", "units_full", "cache_bytes", "peak_cache_bytes", "aux_bytes",
    "total_bytes",
    "slow_steps", "fast_steps", "revived_rows", "prompt_tokens", "new_tokens", "ttft_s", "tpot_s",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """An arm and a length of prompts in tokens."""

    arm: Arm
    length: int

    @property
    def name(self) -> str:
        """Also that of its file."""
        plain = re.sub(r"[^A-Za-z0-9=.{}]+", "-", self.arm.name).strip("-").replace("{", "").replace("}", "")
        return f"{plain}--{self.length}"


class Bench:
    """The bundled model and the examples that all arms see: `examples` of each of `tasks`."""

    def __init__(self, examples: int, tasks: tuple[str, ...] = TASKS) -> None:
        self.examples, self.tasks = examples, tasks
        self.llm, self.cases = cache(_load), cache(self._cases)

    def measure(self, job: Job, out: Path) -> str:
        """Answer the examples that a job's file in `out` does not hold; returns what was done, in words.

        A plan that is refused leaves a file that says why.
        """
        llm, file, plan = self.llm(job.arm.adapter), out / f"{job.name}.json", job.arm.text(job.length)
        head = {"arm": job.arm.name, "adapter": job.arm.adapter, "length": job.length}
        todo = self.cases(job.length)
        try:
            llm.check([case.ids for case in todo], todo[0].params, plan=plan)
        except WinnowError as error:
            reason = str(error).replace(llm.model.config.name_or_path, MODEL)  # a message may name its directory
            write_record(file, {**head, "plan": plan, "refused": reason, "rows": []})
            return f"{job.name}: refused: {reason}"
        head |= {"plan": str(Plan.parse(plan)), "refused": None}
        before = read_record(file)
        rows = [] if before is None or any(before[key] != value for key, value in head.items()) else before["rows"]
        done = {row["index"] for row in rows}
        todo = [case for case in todo if _index(case) not in done]
        if not todo:
            return f"{job.name}: there already"
        commits = {commit(), *(before["commit"].split(", ") if rows and before else ())}
        known = {"environment": environment(llm, MODEL), "machine": machine(llm.device)}
        known["commit"] = ", ".join(sorted(commits))
        rows += [_row(each) for each in answer(llm, [Plan.parse(plan)], iter(todo))]
        write_record(file, {**head, **known, "rows": rows})
        score = sum(row["score"] for row in rows) / len(rows)
        return f"{job.name}: {100 * score:.1f} of {len(rows)} examples"

    def _cases(self, length: int) -> list[Case]:
        llm = self.llm(None)
        return list(cases(llm, [task(name) for name in self.tasks], [length], self.examples))


def _load(adapter: str | None) -> LLM:
    return LLM(MODEL, adapter=adapter)


def _index(case: Case | Answer) -> str:
    return f"{case.task} {case.index}"


def _row(each: Answer) -> Record:
    costs = each.stats.to_dict()
    return {"index": _index(each), "task": each.task, "score": each.score, **{name: costs[name] for name in COSTS}}
