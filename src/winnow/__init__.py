"""Winnow: long-context inference of Hugging Face decoders that spends only on the tokens that matter."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winnow import errors
    from winnow.engine.engine import Engine
    from winnow.engine.request import Completion, Output
    from winnow.engine.session import Session, feed_together
    from winnow.plan import Plan
    from winnow.runtime.llm import LLM
    from winnow.runtime.observer import Observer
    from winnow.sampling import SamplingParams
    from winnow.stats import Stats

__all__ = [
    "LLM",
    "Completion",
    "Engine",
    "Observer",
    "Output",
    "Plan",
    "SamplingParams",
    "Session",
    "Stats",
    "errors",
    "feed_together",
]
__version__ = "0.1.0"

# Loaded when first asked for: torch and transformers take seconds, and `winnow --help` needs neither.
_PLACES = {
    "Completion": "winnow.engine.request",
    "Engine": "winnow.engine.engine",
    "LLM": "winnow.runtime.llm",
    "Observer": "winnow.runtime.observer",
    "Output": "winnow.engine.request",
    "Plan": "winnow.plan",
    "SamplingParams": "winnow.sampling",
    "Session": "winnow.engine.session",
    "Stats": "winnow.stats",
    "feed_together": "winnow.engine.session",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("winnow.errors")
    if name not in _PLACES:
        raise AttributeError(f"module 'winnow' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
