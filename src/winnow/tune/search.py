"""The search: many candidates on few prompts, the better ones on more, the best confirmed on others, and timed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from winnow.evaluation.compare import with_full
from winnow.evaluation.evaluate import Case, Record, answer
from winnow.plan import Plan
from winnow.policies.base import VERBS
from winnow.runtime.llm import LLM
from winnow.tune.candidates import join, joined_plans, single_plans, verb_of
from winnow.tune.clock import Clock, OutOfTime
from winnow.tune.frontier import Figures, figures_of, frontier, take_turns
from winnow.tune.limits import Limits
from winnow.tune.measure import Reference, measure, reference
from winnow.tune.prompts import split
from winnow.tune.state import Ledger

FIRST = (2, 4)  # the least and the most prompts that every candidate is tried on: one of each task
ROUNDS = ((4, 14), (1 << 30, 10))  # prompts, and the most plans that get so far
PER_VERB = 4  # plans of each verb that are joined with those of others
JOINED = 24  # joined plans that are tried
FINALISTS = 5  # plans that are timed, beside full attention
SLACK = 2.0  # times the limit on KL and disagreement, for plans that few prompts have been spent on
# Shares of the time limit after which each stage gives way to the next.
ENDS = {"single policies": 0.25, "joined policies": 0.4, "the better ones": 0.55, "confirmation": 0.82, "timing": 1.0}
# By what plans are ranked, in turns.
RANKED: tuple[Callable[[Figures], float], ...] = (lambda row: row.pace, lambda row: row.counted, lambda row: row.kl)


class Tuning:
    """One search. `run` may be interrupted anywhere; what there is by then is in the attributes.

    cases: the prompts, `split` by `seed`. limits: what the recommended plan keeps to. ledger: measurements, those of
    earlier runs included. clock: the time limit; a stage that runs out of its share gives way to the next.

    pool: the plans that got farthest. finalists: those that are confirmed, or come nearest. records: their timed
    answers. skipped: lines on what was not tried. ended: the stages that ran out of time.
    """

    def __init__(self, llm: LLM, cases: Sequence[Case], limits: Limits, ledger: Ledger, clock: Clock, seed: int = 0):
        self.limits = limits.with_default()
        self.parts = split(cases, seed)
        self.first = min(max(FIRST[0], len({case.task for case in cases})), FIRST[1])
        self.ledger = ledger
        self.clock = clock
        self.pool: list[Plan] = []
        self.finalists: list[Plan] = []
        self.records: list[Record] = []
        self.skipped: list[str] = []
        self.ended: list[str] = []
        self.tried: dict[str, Plan] = {}
        self._llm, self._cases, self._seed = llm, list(cases), seed
        self._references: dict[int, Reference] = {}
        self._note: Callable[[str], None] = lambda text: None
        self._stage, self._share = next(iter(ENDS.items()))

    def run(self, note: Callable[[str], None] = lambda text: None) -> None:
        """Search, confirm, time. note: told now and then what is being done. Raises InputError, CapacityError."""
        self._note = note
        stages = (self._singles, self._join, self._narrow, self._confirm, self._time)
        for stage, (self._stage, self._share) in zip(stages, ENDS.items(), strict=True):
            try:
                stage()
            except OutOfTime:
                self.ended.append(self._stage)

    def searched(self, plan: Plan) -> Figures | None:
        """The figures of a plan on the prompts of the search, as far as it got."""
        return self._figures(plan, self.parts.search)

    def confirmed(self, plan: Plan) -> Figures | None:
        """Its figures on the other prompts, or on some of them where those showed that it fails."""
        return self._figures(plan, self.parts.confirmation)

    def frontier(self) -> list[Figures]:
        """The figures of the plans in the pool that no other beats, all on the same prompts."""
        rows = [row for plan in self.pool if (row := self.searched(plan)) is not None]
        known = [row for row in rows if row.prompts >= min(self.first, max(other.prompts for other in rows))]
        common = min((row.prompts for row in known), default=0)
        groups = [self.ledger.of(row.plan, self.parts.search[:common]) for row in known]
        return frontier([figures_of(group) for group in groups if group])

    def _singles(self) -> None:
        self._reference(self.parts.search[0])  # warms up, and is repeated for its time
        del self._references[self.parts.search[0]]
        singles = single_plans(self._llm, self._cases)
        self.skipped += singles.skipped
        self.pool = [Plan(), *singles.plans]
        self._rung(self.pool, self.first)

    def _join(self) -> None:
        joined = self._joined(self._measured())
        self.pool += joined
        self._rung(joined, self.first)

    def _narrow(self) -> None:
        for count, most in ROUNDS:
            others = self._measured()
            self.pool = [Plan(), *self._best([plan for plan in others if self._near(plan)] or others, most)]
            self._rung(self.pool, count)

    def _measured(self) -> list[Plan]:
        """The plans of the pool that have been measured, without full attention."""
        return [plan for plan in self.pool if not plan.is_full and self.searched(plan) is not None]

    def _joined(self, singles: Sequence[Plan]) -> list[Plan]:
        """The best plans of each verb joined: those that promise to hold to the limits, to be fast, and to save what is
        counted, the last two in turns."""
        near = [plan for plan in singles if self._near(plan)]
        by_verb = {verb: [plan for plan in near if verb_of(plan) == verb] for verb in VERBS}
        best = {verb: self._best(plans, PER_VERB) for verb, plans in by_verb.items()}
        ways = joined_plans(self._llm, best, self._cases)

        def product(figure: Callable[[Figures], float], members: Sequence[Plan]) -> float:
            return math.prod(figure(self._known(plan)) for plan in members)

        keys = [
            lambda way: (self._promised(way), product(lambda row: row.pace, way)),
            lambda way: (self._promised(way), product(lambda row: row.counted, way)),
        ]
        return [join(way) for way in take_turns(ways, keys, JOINED)]

    def _promised(self, way: Sequence[Plan]) -> float:
        """How far joined plans are off the loosened limits if their losses add up and their memory is a share of what
        the others leave."""
        rows, full = [self._known(plan) for plan in way], self._known(Plan())
        figures = {
            "kl": sum(row.kl for row in rows),
            "agreement": 1 - sum(1 - row.agreement for row in rows),
            "total_mib": full.total_mib * math.prod(row.total_mib / full.total_mib for row in rows),
        }
        return sum(self.limits.loosened(SLACK).excess(figures).values())

    def _best(self, plans: Sequence[Plan], count: int) -> list[Plan]:
        """Those nearest to the loosened limits; among equals the fastest, those that count least and those that lose
        least, in turns: a few prompts show no tail, and what loses little on them is the safest."""
        loose = self.limits.loosened(SLACK)

        def off(plan: Plan) -> float:
            return sum(loose.excess(self._known(plan).likely).values())

        def nearest(figure: Callable[[Figures], float]) -> Callable[[Plan], tuple[float, float]]:
            return lambda plan: (off(plan), figure(self._known(plan)))

        return take_turns(plans, list(map(nearest, RANKED)), count)

    def _near(self, plan: Plan) -> bool:
        """Whether a plan may yet hold to the limits on KL and agreement; what it holds can change when it is joined."""
        loose = self.limits.loosened(SLACK)
        return not loose.excess({name: self._known(plan).likely[name] for name in ("kl", "agreement")})

    def _fails(self, row: Figures | None, part: Sequence[int], limits: Limits) -> bool:
        """Whether a plan misses limits on a part even if it is full attention on all prompts that are to come."""
        if row is None:
            return False
        share = row.prompts / len(part)
        return bool(limits.excess({"kl": share * row.kl, "agreement": 1 - share * (1 - row.agreement)}))

    def _confirm(self) -> None:
        """Try full attention and the plans, most promising first, on the other prompts, until enough hold there too."""
        passed: list[Plan] = []
        tried: list[Plan] = []
        try:
            for plan in [Plan(), *self._promising()]:
                for prompt in self.parts.confirmation:
                    if not self._fails(self.confirmed(plan), self.parts.confirmation, self.limits):
                        self._measure(plan, prompt)
                tried.append(plan)
                if self.holds(plan):
                    passed.append(plan)
                self._note(f"confirming: {len(passed)} of {len(tried)} plans hold to the limits")
                if len(passed) > FINALISTS:
                    break
        finally:
            self.finalists = passed or tried[: FINALISTS + 1]

    def _promising(self) -> list[Plan]:
        """Plans that hold to the counted limits with a margin, those first that no other beats; else the nearest.

        One that is beaten may be the one that holds: a search easily misses the prompt in ten on which a plan fails.
        """
        known = {str(plan): plan for plan in self.tried.values() if not plan.is_full and self.searched(plan)}
        rows = [self._known(plan) for plan in known.values()]
        holding = [row for row in rows if not self.limits.excess(row.careful)]
        best = frontier(holding)

        def off(row: Figures) -> tuple[float, float]:
            counted = sum(self.limits.excess(row.careful).values())
            return counted, sum(self.limits.excess(row.rough_times).values())

        def nearest(figure: Callable[[Figures], float]) -> Callable[[Figures], tuple[float, float, float]]:
            return lambda row: (*off(row), figure(row))

        keys = list(map(nearest, RANKED))
        groups = [best, [row for row in holding if row not in best]] if holding else [rows]
        return [known[row.plan] for group in groups for row in take_turns(group, keys, len(group))]

    def holds(self, plan: Plan) -> bool:
        """Whether a plan holds to the counted limits with a margin on both parts of the prompts, the second whole."""
        searched, confirmed = self.searched(plan), self.confirmed(plan)
        if searched is None or confirmed is None or confirmed.prompts < len(self.parts.confirmation):
            return False
        return not self.limits.excess(searched.careful) and not self.limits.excess(confirmed.careful)

    def _time(self) -> None:
        """Answer the prompts of the confirmation under full attention and the finalists, which take turns."""
        if not self.finalists:
            return
        plans = with_full(self.finalists)
        cases = [self._cases[prompt] for prompt in self.parts.confirmation]
        label = max(case.length for case in cases)  # one group, whatever the lengths
        made = answer(
            self._llm, plans, (replace(case, length=label, index=i) for i, case in enumerate(cases)), self._seed
        )
        while True:
            # The first answer comes after a short run of every plan.
            with self.clock.run(self._share, 1 if self.records else len(plans) + 1):
                record = next(made, None)
            if record is None:
                return
            self.records.append(record)
            self._note(f"timing: {len(self.records)} of {len(plans) * len(cases)} answers")

    def _rung(self, plans: Sequence[Plan], count: int) -> None:
        prompts = self.parts.search[:count]
        for turn, prompt in enumerate(prompts):
            loose = self.limits.loosened(SLACK)
            going = [plan for plan in plans if not self._fails(self.searched(plan), self.parts.search, loose)]
            for done, plan in enumerate(going):
                self._note(f"{self._stage}: prompt {turn + 1} of {len(prompts)}, plan {done + 1} of {len(going)}")
                self._measure(plan, prompt)

    def _measure(self, plan: Plan, prompt: int) -> None:
        self.tried[str(plan)] = plan
        if self.ledger.get(str(plan), prompt) is not None:
            return
        full = self._reference(prompt)
        if not plan.is_full:
            with self.clock.run(self._share):
                made = measure(self._llm, full, plan)
            self.ledger.add(made)

    def _reference(self, prompt: int) -> Reference:
        if prompt not in self._references:
            with self.clock.run(self._share):
                self._references[prompt] = reference(self._llm, self._cases[prompt], prompt)
            self.ledger.add(self._references[prompt].full)
        return self._references[prompt]

    def _figures(self, plan: Plan, prompts: Sequence[int]) -> Figures | None:
        group = self.ledger.of(str(plan), prompts)
        return figures_of(group) if group else None

    def _known(self, plan: Plan) -> Figures:
        found = self.searched(plan)
        assert found is not None, f"{plan} was ranked before it was measured"
        return found
