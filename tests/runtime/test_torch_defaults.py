"""torch's default dtype and device, and autocast, are other people's: what a program has set, or another thread."""

import re
from pathlib import Path

import pytest
import torch

from models import small_model
from trials import plan_of, small_llm
from winnow import LLM, SamplingParams
from winnow.policies.registry import POLICIES

PLANS = [str(plan_of(name, policy.trial)) for name, policy in POLICIES.items()]
MADE = re.compile(r"torch\.(?:empty|zeros|ones|rand|randn)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=str)
def default(request):
    """Sets it when called."""
    before = torch.get_default_dtype()
    yield lambda: torch.set_default_dtype(request.param)
    torch.set_default_dtype(before)


@pytest.mark.parametrize("plan", PLANS)
def test_the_default_dtype_does_not_count(default, plan):
    llm, ids = small_llm("llama"), [3 + 7 * at % 90 for at in range(70)]
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=1)
    [expected] = llm.generate([ids], params, plan=plan)
    default()
    [found] = llm.generate([ids], params, plan=plan)
    assert found.token_ids == expected.token_ids
    assert found.logprobs == expected.logprobs


@pytest.mark.parametrize("plan", PLANS)
def test_autocast_does_not_count(plan):
    llm, ids = small_llm("llama"), [3 + 7 * at % 90 for at in range(70)]
    expected = llm.logits(ids, decode_from=66, plan=plan)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = llm.logits(ids, decode_from=66, plan=plan)
    assert torch.equal(found, expected)


def test_the_default_device_does_not_count():
    llm, ids = LLM(small_model("llama"), prefill_chunk=64), [3 + at % 90 for at in range(120)]
    expected = llm.logits(ids, decode_from=110)
    with torch.device("meta"):
        found = llm.logits(ids, decode_from=110)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("part", ["kernels", "runtime", "cache", "policies", "engine"])
def test_what_is_made_says_its_dtype(part):
    source = Path(__file__).parents[2] / "src" / "winnow" / part
    calls = [call for file in source.rglob("*.py") for call in MADE.findall(file.read_text(encoding="utf-8"))]
    assert calls
    assert not [call for call in calls if "dtype=" not in call]
