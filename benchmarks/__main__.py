"""`python -m benchmarks`: the benchmarks by name, each imported when it is called."""

import sys

from benchmarks.options import PROGRAM
from winnow.cli.main import new_app, run_app

BENCHMARKS = {
    "decode": ("speed:Decode", "Seconds per decode step after many cached tokens, beside stock transformers."),
    "prefill": ("speed:Prefill", "Seconds to prefill a prompt, beside stock transformers."),
    "table": ("speed:Table", "Show records of decode or prefill again."),
    "plot": ("speed:Plot", "Draw records of decode or prefill."),
    "decoding": ("speed:Decoding", "Time per token of whole decodes, slow and fast steps apart."),
    "generation": ("speed:Generation", "Time of whole generations, from the prompt to the last token."),
    "memory": ("models:Memory", "Memory and tokens per second of long prompts, each in a process of its own."),
    "beyond": ("models:Beyond", "Pass keys in prompts longer than the model has positions."),
    "fidelity": ("models:Fidelity", "How close plans stay to full attention on real texts, by domain."),
    "quality": ("quality:app", "What plans lose and cost: settings chosen on validation, arms compared on test."),
    "presses": ("models:Presses", "What plans keep beside the presses of kvpress that they translate."),
    "peers": ("models:Peers", "One decode step after many cached tokens: plans beside peers."),
    "file": ("models:File", "Prefill and tokens of a GGUF file: Winnow beside llama.cpp and transformers."),
    "busy": ("models:Busy", "Time per token beside another busy process: all threads, one, watched."),
    "steps": ("engine:Steps", "Milliseconds per decode step on a real text, plan beside plan."),
    "sparse": ("engine:Sparse", "Prefill that skips what rows of a prompt read, against full attention."),
    "overhead": ("engine:Overhead", "What a decode step spends outside kernels, and its Python calls."),
    "together": ("engine:Together", "Sequences that decode together: one alone, the floor, transformers."),
    "arrival": ("engine:Arrival", "A long prompt that arrives while others decode: gaps and time to first token."),
    "turns": ("engine:Turns", "Time to the first token of every turn of a chat over a document."),
    "replicas": ("engine:Replicas", "Streams of several replicas while one is killed, or a node goes away."),
    "load": ("load:app", "A server under load: streams at once, a long prompt that comes, memory after many."),
    "attention": ("engine:Attention", "What attention takes of a step, by how units are held."),
    "mapped": ("engine:Mapped", "A context in files, in a part of memory that it is larger than."),
    "forks": ("engine:Forks", "Memory of many samples of one prompt."),
    "stores": ("engine:Stores", "What holding units in fewer bits costs, and saves."),
    "sweep": ("layers:Sweep", "Score, speed-up and work saved for many plans."),
    "depth": ("layers:Depth", "Score with exactly one pruning layer, by its depth and by what goes on there."),
    "usage": ("layers:Usage", "Share of the prompt that each stage of layers has computed, step by step."),
    "sparsity": ("layers:Sparsity", "How few prompt tokens hold the attention of the last one, by layer."),
    "schedule": ("layers:Schedule", "Propose a LazyLLM plan for a wanted cost of prefill; nothing is run."),
}

app = new_app(PROGRAM, "Measure what the figures of this repository come from.")
for _name, (_place, _about) in BENCHMARKS.items():
    app.command(f"benchmarks.commands.{_place}", name=_name, help=_about)

if __name__ == "__main__":
    sys.exit(run_app(app))
