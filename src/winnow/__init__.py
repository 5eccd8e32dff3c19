"""Winnow: long-context inference of Hugging Face decoders that spends only on the tokens that matter."""

from winnow import errors
from winnow.plan import Plan
from winnow.runtime.generate import Completion
from winnow.runtime.llm import LLM
from winnow.runtime.sampling import SamplingParams
from winnow.stats import Stats

__all__ = ["LLM", "Completion", "Plan", "SamplingParams", "Stats", "errors"]
__version__ = "0.1.0"
