"""Winnow under one plan, as a worker like the others; run as a script."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from wire import Refused, serve  # type: ignore[import-not-found]

import winnow
from winnow.bench.decode import fill
from winnow.errors import WinnowError
from winnow.plan import Plan
from winnow.runtime.forward import decode, prefill
from winnow.runtime.llm import LLM
from winnow.runtime.scorer import admit


class Winnow:
    """A sequence under the plan, prefilled in chunks."""

    def check(self, threads: int, device: str, plan: str, prefill_chunk: int, weights: str = "auto") -> dict[str, str]:
        torch.set_num_threads(threads)
        self.plan, self.chunk = Plan.parse(plan), prefill_chunk
        self.options: dict[str, Any] = {"device": device, "plan": self.plan, "prefill_chunk": prefill_chunk}
        self.options["weights"] = weights
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        return {"winnow": winnow.__version__, **versions}

    def load(self, model: str, dtype: str, context: int) -> None:
        transformers.utils.logging.disable_progress_bar()
        try:
            self.llm = LLM(model, dtype=dtype, **self.options)
        except WinnowError as error:
            raise Refused(str(error)) from error

    def start(self, ids: list[int], max_tokens: int) -> np.ndarray:
        self.release()
        decoder = self.llm.decoder
        self.state, seen = admit(decoder, self.llm.tokenizer, self.plan, ids, max_tokens, self.chunk)
        return _array(prefill(decoder, self.state, seen, self.chunk))

    def release(self) -> None:
        """Let the last sequence's units go before new ones come."""
        if hasattr(self, "state"):
            self.state.release()

    def step(self, token: int) -> np.ndarray:
        return _array(decode(self.llm.decoder, [(self.state, token)])[0])

    def logits(self, ids: list[int]) -> Iterator[np.ndarray]:
        """In chunks, as a prompt."""
        yield _array(self.llm.logits(ids, plan=self.plan))

    def fill(self, length: int, units: np.ndarray, steps: int) -> None:
        """By `winnow.bench.decode`, which draws the same units itself; a policy with a budget then keeps the newest."""
        decoder = self.llm.decoder
        self.state, _ = admit(decoder, None, self.plan, [1] * length, steps, self.chunk)
        fill(decoder, [self.state], None, length)

    def held(self) -> tuple[int, int | None]:
        """With what the plan stores now besides keys and values."""
        state, caches = self.state, self.state.own_caches()
        state.measure()
        kept = sum(cache.length * self.llm.decoder.shape.kv_heads for cache in caches)
        return state.stats.cache_bytes + state.held()[1], kept


def _array(logits: torch.Tensor) -> Any:
    return logits.float().cpu().numpy()


if __name__ == "__main__":
    serve(Winnow())
