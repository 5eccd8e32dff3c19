"""What /metrics shows: vLLM's names where they mean the same, and what plans save."""

import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from winnow.engine.engine import Engine
from winnow.engine.request import Completion, Output, Request
from winnow.server.labelled import PREFIX
from winnow.stats import Stats

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKENS = tuple(2.0**power for power in range(0, 21, 2))
COSTS = {  # by name in the costs of a sample: name here, and help
    "rows_computed": ("rows_computed_total", "Rows that prompts and answers took, summed over layers"),
    "rows_full": ("rows_full_total", "Rows that full attention would have taken"),
    "units_read": ("units_read_total", "Units that decode steps have read, summed over layers and KV heads"),
    "units_full": ("units_full_total", "Units that full attention would have read"),
    "pairs_read": (
        "pairs_read_total",
        "Pairs of a query and a key that rows of prompts have read, where a plan chooses",
    ),
    "pairs_full": ("pairs_full_total", "The same where they read everything"),
    "total_bytes": ("held_bytes_total", "The most bytes that each sample has held at once, summed"),
    "total_bytes_full": ("held_bytes_full_total", "The same under full attention"),
}


class Metrics:
    """Counts, from the engine's thread and the server's loop. costs: of a sample, by the names in COSTS."""

    def __init__(self, costs: Callable[[Stats], dict[str, int]]) -> None:
        self.registry, self._costs_of = CollectorRegistry(), costs
        self._costs = {name: self._counter(*shown) for name, shown in COSTS.items()}
        self._prompt = self._counter("prompt_tokens_total", "Prompt tokens processed")
        # vLLM counts tokens under these names, too.
        self._queried = self._counter("prefix_cache_queries", "Prompt tokens looked for among retained sequences")
        self._hit = self._counter("prefix_cache_hits", "Prompt tokens found there, and not computed")
        self._generated = self._counter("generation_tokens_total", "Tokens generated")
        self._ended = self._counter("request_success_total", "Samples that have ended", ["finished_reason"])
        self._ttft = self._seconds("time_to_first_token_seconds", "From arrival to the first token")
        self._gap = self._seconds("inter_token_latency_seconds", "Between two tokens of a sample")
        self._tpot = self._seconds("request_time_per_output_token_seconds", "Mean of a sample's gaps")
        self._whole = self._seconds("e2e_request_latency_seconds", "From arrival to the last token")
        self._queued = self._seconds("request_queue_time_seconds", "From arrival to the beginning")
        self._prefill = self._seconds("request_prefill_time_seconds", "From the beginning to the first token")
        self._decode = self._seconds("request_decode_time_seconds", "From the first token to the last")
        self._busy = self._seconds("request_inference_time_seconds", "From the beginning to the last token")
        self._step = self._tokens("iteration_tokens_total", "Tokens of a step, of prompts and answers")
        self._sizes = {
            name: self._tokens(name, about)
            for name, about in {
                "request_prompt_tokens": "Prompt tokens of a request",
                "request_generation_tokens": "Tokens of a sample",
                "request_params_n": "Samples asked for",
                "request_params_max_tokens": "Tokens asked for, at most",
            }.items()
        }
        self._read = 0
        self._last: dict[tuple[int, int], float] = {}  # when a sample had its last token

    def follow(self, engine: Engine) -> None:
        """Show what an engine does at the moment of asking."""
        self._gauge("num_requests_running", "Samples that are continued").set_function(lambda: engine.running)
        self._gauge("num_requests_waiting", "Requests that wait to begin").set_function(lambda: engine.waiting)
        reserved = self._gauge("cache_reserved_bytes", "The most that all that is running can come to hold")
        reserved.set_function(lambda: engine.reserved_bytes)
        retained = self._gauge(
            "cache_retained_bytes", "Of sequences that have ended, for prompts that begin as they do"
        )
        retained.set_function(lambda: engine.retained_bytes)
        if (most := engine.max_cache_bytes) is not None:
            used = self._gauge("kv_cache_usage_perc", "The same as a share of what there is; 1 is all")
            used.set_function(lambda: engine.reserved_bytes / most)

    def read(self, tokens: int) -> None:
        """So many tokens of a prompt have been processed."""
        self._read += tokens

    def asked(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._sizes["request_prompt_tokens"].observe(len(request.ids))
            self._sizes["request_params_n"].observe(request.params.n)
            self._sizes["request_params_max_tokens"].observe(request.params.max_tokens)

    def step(self, outputs: Sequence[Output]) -> None:
        """What a step has brought."""
        now, new = time.perf_counter(), sum(len(output.token_ids) for output in outputs)
        prompt, self._read = self._read, 0
        self._prompt.inc(prompt)
        self._generated.inc(new)
        if prompt + new:
            self._step.observe(prompt + new)
        for output in outputs:
            sample = (output.request_id, output.sample_index)
            if output.token_ids:
                if sample in self._last:
                    self._gap.observe(now - self._last[sample])
                self._last[sample] = now
            if output.completion is not None:
                self._last.pop(sample, None)
                self._end(output.completion, first=output.sample_index == 0)

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(self.registry)

    def _end(self, completion: Completion, *, first: bool) -> None:
        """A sample has ended; first: of its prompt."""
        stats = completion.stats
        if first and stats.new_tokens:
            self._queried.inc(stats.prompt_tokens)
            self._hit.inc(stats.cached_tokens)
        self._ended.labels(completion.finish_reason).inc()
        if stats.rows_full:  # one that was given up before it began has saved nothing
            found = self._costs_of(stats)
            for name, counter in self._costs.items():
                counter.inc(found[name])
        if stats.new_tokens:
            self._sizes["request_generation_tokens"].observe(stats.new_tokens)
            self._ttft.observe(stats.ttft_s)
            self._whole.observe(stats.total_s)
            self._queued.observe(stats.queue_s)
            self._prefill.observe(stats.ttft_s - stats.queue_s)
            self._decode.observe(stats.total_s - stats.ttft_s)
            self._busy.observe(stats.total_s - stats.queue_s)
        if stats.new_tokens > 1:
            self._tpot.observe(stats.tpot_s)

    def _counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(PREFIX + name, about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(PREFIX + name, about, registry=self.registry)

    def _seconds(self, name: str, about: str) -> Histogram:
        return Histogram(PREFIX + name, about, buckets=SECONDS, registry=self.registry)

    def _tokens(self, name: str, about: str) -> Histogram:
        return Histogram(PREFIX + name, about, buckets=TOKENS, registry=self.registry)
