"""What answers cost, each figure beside full attention's."""

from collections.abc import Sequence
from typing import Any

from winnow.engine.bound import bound_bytes
from winnow.engine.request import Completion, Request
from winnow.plan import Plan
from winnow.policies.base import ModelShape
from winnow.stats import Stats


def costs(stats: Stats, shape: ModelShape, chunk: int) -> dict[str, int]:
    """Rows, units, bytes and steps of a sample; chunk: the most rows of a prompt in a step.

    total_bytes_full is the most that full attention holds for as many tokens, by its closed formula. Under full
    attention every decode step reads every unit: all are slow ones.
    """
    return {
        "cached_tokens": stats.cached_tokens,
        "rows_computed": stats.rows_computed,
        "rows_full": stats.rows_full,
        "units_read": stats.units_read,
        "units_full": stats.units_full,
        "pairs_read": stats.pairs_read,
        "pairs_full": stats.pairs_full,
        "total_bytes": stats.total_bytes,
        "total_bytes_full": bound_bytes(Plan(), shape, stats.prompt_tokens, max(0, stats.new_tokens - 1), chunk),
        "slow_steps": stats.slow_steps,
        "slow_steps_full": stats.slow_steps + stats.fast_steps,
    }


def usage(
    requests: Sequence[Request], completions: Sequence[Completion], each: Sequence[dict[str, int]]
) -> dict[str, Any]:
    """OpenAI's counts, and below `winnow` the plan and the costs of all samples, summed.

    each: the costs of each; samples of one prompt all count its prefill.
    """
    prompt = sum(len(request.ids) for request in requests)
    cached = {completion.prompt_index: completion.stats.cached_tokens for completion in completions}
    new = sum(len(completion.token_ids) for completion in completions)
    summed: dict[str, Any] = {name: sum(one[name] for one in each) for name in each[0]}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
        "winnow": {"plan": str(requests[0].plan), **summed},
    }
