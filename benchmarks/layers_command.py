"""`python -m benchmarks sweep`, `depth`, `usage`, `sparsity` and `schedule`: what schedules of layers save and cost."""

from functools import partial

from benchmarks.commands.layers import Depth, Schedule, Sparsity, Sweep, Usage
from benchmarks.depth import cells, every_layer, grid
from benchmarks.depth import depth as measure_depth
from benchmarks.plots import plot_depth, plot_sparsity, plot_sweep, plot_usage
from benchmarks.record import Record, about
from benchmarks.schedule import flops as operations
from benchmarks.schedule import propose
from benchmarks.sparsity import check_masses, mean_profiles, token_shares
from benchmarks.sparsity import sparsity as measure_sparsity
from benchmarks.sweep import arms_of, finished_runs, summarise_sweep
from benchmarks.sweep import sweep as run_sweep
from benchmarks.tables import depth_table, schedule_table, sparsity_table, sweep_tables, usage_table
from benchmarks.usage import stages, still_running
from benchmarks.usage import usage as measure_usage
from winnow.cli.deliver import deliver
from winnow.cli.inputs import make_tasks, parse_plan, parse_plans, refuse
from winnow.cli.options import EXAMPLES, TASKS, ModelOptions, TaskOptions
from winnow.cli.terminal import collect
from winnow.errors import InputError
from winnow.evaluation.compare import finished, with_full
from winnow.policies.compute.schedule import rows_per_layer
from winnow.tasks import Task

PLANS = ("lazyllm",)


def sweep(options: Sweep) -> int:
    """Answer the same questions under many plans; returns the exit code."""
    plans, lengths = with_full(parse_plans(options.plan, PLANS)), options.lengths
    if options.plot is None:
        refuse("is about --plot only", {"--against": options.against})
    tasks, examples = _asked(options)
    llm = options.load()
    arms, seed = arms_of(plans, options.seeds), options.seed
    each = examples * len(tasks) * arms  # answers per length
    measure = partial(run_sweep, llm, plans, tasks, lengths, examples, seeds=options.seeds, seed=seed)
    runs = collect("sweeping", each * sum(lengths), f"{each * len(lengths)} answers", measure)
    rows = summarise_sweep(finished_runs(runs, arms))
    figures = {"summary": [row.to_dict() for row in rows], "records": [run.to_dict() for run in runs]}
    draw = partial(plot_sweep, rows=rows, against=options.against or "ttft") if rows else None
    settings = {"adapter": options.adapter, "seed": seed, "seeds": options.seeds, "plans": [str(p) for p in plans]}
    settings = about(llm, options.model_name, **settings)
    shown, complete = sweep_tables(rows, options.model_name), len(runs) == each * len(lengths)
    return deliver(Record("sweep", figures, shown, draw, complete, settings), options)


def depth(options: Depth) -> int:
    """Score every pair of a pruning layer and a keep ratio; returns the exit code."""
    grid(options.layer or (1,), options.keep)  # refuses what no model takes
    length, (tasks, examples) = options.tokens, _asked(options)
    llm, name = options.load(), options.model_name
    plans = grid(options.layer or every_layer(llm.decoder.shape), options.keep)
    arms = len(with_full(list(plans.values())))
    answers = arms * examples * len(tasks)
    measure = partial(measure_depth, llm, plans, tasks, length, examples, seed=options.seed)
    records = collect("pruning once", answers * length, f"{answers} answers", measure)
    made = cells(finished(records, arms), plans)
    figures = {"cells": [cell.to_dict() for cell in made], "records": [record.to_dict() for record in records]}
    shown = depth_table(made, f"{name}, {length:,} prompt tokens: score, %, with one pruning layer")
    draw = partial(plot_depth, cells=made) if made else None
    settings = about(llm, name, seed=options.seed, length=length)
    return deliver(Record("depth", figures, shown, draw, len(records) == answers, settings), options)


def usage(options: Usage) -> int:
    """Watch which prompt tokens are computed when; returns the exit code."""
    plan = parse_plan(options.plan)
    length, (tasks, examples) = options.tokens, _asked(options)
    llm, name, answers = options.load(), options.model_name, examples * len(tasks)
    measure = partial(
        measure_usage, llm, plan, tasks, length, examples, max_tokens=options.max_tokens, seed=options.seed
    )
    done = collect("watching", answers * length, f"{answers} answers", measure)
    made, running = (stages(done), still_running(done)) if done else ([], [])
    figures = {"plan": str(plan), "stages": [stage.to_dict() for stage in made], "running": running}
    figures["records"] = [each.to_dict() for each in done]
    shown = usage_table(made, running, f"{name}, {length:,} prompt tokens, {plan}: prompt tokens computed, %")
    draw = partial(plot_usage, stages=made, plan=str(plan)) if done else None
    settings = about(llm, name, seed=options.seed, length=length)
    return deliver(Record("usage", figures, shown, draw, len(done) == answers, settings), options)


def sparsity(options: Sparsity) -> int:
    """Measure the attention of last prompt tokens; returns the exit code."""
    masses = list(dict.fromkeys(options.mass))
    check_masses(masses)
    length, (tasks, examples) = options.tokens, _asked(options)
    llm, name, prompts = options.load(), options.model_name, examples * len(tasks)
    measure = partial(measure_sparsity, llm, tasks, length, examples, masses=masses, seed=options.seed)
    done = collect("measuring attention", prompts * length, f"{prompts} prompts", measure)
    made, shares = mean_profiles(done) if done else [], token_shares(length)
    figures = {"prompts": len(done), "token_shares": shares, "layers": [profile.to_dict() for profile in made]}
    title = f"{name}, {length:,} prompt tokens, {len(done)} prompts: tokens that hold the attention"
    draw = partial(plot_sparsity, profiles=made, shares=shares) if made else None
    settings = about(llm, name, seed=options.seed, length=length)
    return deliver(
        Record("sparsity", figures, sparsity_table(made, title), draw, len(done) == prompts, settings), options
    )


def schedule(options: Schedule) -> int:
    """Propose a schedule by its closed formula; returns the exit code."""
    if sum(wanted is not None for wanted in (options.speedup, options.rows, options.flops)) != 1:
        raise InputError("give one of --speedup, --rows and --flops")
    source, length = ModelOptions(model=options.model, device="cpu", threads=options.threads), options.length
    llm = source.load()
    shape = llm.decoder.shape
    found = propose(shape, length, rows=options.rows, flops=options.flops, speedup=options.speedup)
    whole = operations([length], shape)
    layers = [
        {"layer": layer, "rows": count, "rows_share": count / length, "flops_share": operations([count], shape) / whole}
        for layer, count in enumerate(rows_per_layer(length, shape.layers, found.layers, found.keep))
    ]
    figures = {"plan": found.plan, "rows": found.rows, "flops": found.flops, "layers": layers}
    settings = about(llm, source.model_name, length=length)
    return deliver(Record("schedule", figures, schedule_table({**figures, **settings}), about=settings), options)


def _asked(options: TaskOptions) -> tuple[list[Task], int]:
    """The tasks, and how many examples of each."""
    return make_tasks(options.task or TASKS, options.data, options.haystack), options.examples or EXAMPLES
