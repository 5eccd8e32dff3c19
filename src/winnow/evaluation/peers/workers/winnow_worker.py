"""Winnow under one plan, as a worker like the others; run as a script."""

from typing import Any

import numpy as np
import torch
import transformers
from wire import Refused, serve  # type: ignore[import-not-found]

import winnow
from winnow.errors import WinnowError
from winnow.plan import Plan
from winnow.runtime.llm import LLM


class Winnow:
    """A sequence under the plan, prefilled in chunks."""

    def check(self, threads: int, device: str, plan: str, prefill_chunk: int, weights: str = "auto") -> dict[str, str]:
        torch.set_num_threads(threads)
        self.plan = Plan.parse(plan)
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
        self.session = self.llm.session(max_tokens=max_tokens)
        return array(self.session.feed(ids)[0])

    def release(self) -> None:
        """Let the last sequence's units go before new ones come."""
        if hasattr(self, "session"):
            self.session.close()

    def step(self, token: int) -> np.ndarray:
        return array(self.session.feed([token])[0])

    def held(self) -> tuple[int, int | None]:
        """With what the plan stores now besides keys and values."""
        held = self.session.held
        return held.unit_bytes + held.beside_bytes, held.units


def array(logits: torch.Tensor) -> Any:
    """[..., vocab] float32."""
    return logits.float().cpu().numpy()


if __name__ == "__main__":
    serve(Winnow())
