import pytest
import torch

from models import small_model, stock_logits
from winnow import LLM
from winnow.errors import CapacityError, InputError, ModelError, PlanError
from winnow.evaluation.fidelity import distance, fidelity, perplexity

STREAMING = "streaming(sink=2, recent=8)"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(small_model(), prefill_chunk=16)


def test_full_attention_is_faithful_to_itself(llm, text):
    found = fidelity(llm, text, "full", 10)
    assert (found.tokens, found.prompt_tokens, found.top1) == (38, 10, 1.0)
    assert abs(found.kl) < 1e-6
    assert found.nll_full == pytest.approx(found.nll_plan, abs=1e-6)


def test_what_is_no_number_is_no_agreement():
    rows = torch.randn(3, 8).log_softmax(-1)
    found = distance("a plan", 4, [1, 2, 3], rows, torch.stack([rows[0], rows[1] * torch.nan, rows[2]]))
    assert (found.top1, found.nll_full) == (
        pytest.approx(2 / 3),
        pytest.approx(-float(rows[[0, 1, 2], [1, 2, 3]].mean())),
    )
    told = found.to_dict()
    assert [name for name, value in told.items() if value is None] == ["kl", "nll_plan", "perplexity_plan"]
    with pytest.raises(
        ModelError, match=r"full attention gives no numbers here \(NaN\); use --dtype bfloat16 or float32"
    ):
        distance("a plan", 4, [1, 2, 3], rows * torch.nan, rows)


def test_a_model_that_overflows_has_no_perplexity(text):
    model = small_model()
    model.model.norm.weight.data[0] = torch.nan
    with pytest.raises(ModelError, match="gives no numbers here"):
        perplexity(LLM(model), text)


def test_it_is_what_the_logits_of_both_plans_say(llm, text):
    found = fidelity(llm, text, STREAMING, 20)
    full, other = (llm.logits(text, decode_from=20, plan=p)[:-1].log_softmax(-1) for p in ("full", STREAMING))
    kl = torch.nn.functional.kl_div(other, full, log_target=True, reduction="batchmean")
    index = torch.arange(28), torch.tensor(text[20:])
    assert found.kl == pytest.approx(float(kl), rel=1e-4)
    assert found.kl > 1e-3
    assert found.top1 == pytest.approx(float((full.argmax(-1) == other.argmax(-1)).float().mean()))
    assert found.nll_full == pytest.approx(-float(full[index].mean()), rel=1e-5)
    assert found.nll_plan == pytest.approx(-float(other[index].mean()), rel=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_perplexity_is_the_stock_cross_entropy(text, chunk):
    model = small_model()
    expected = torch.nn.functional.cross_entropy(stock_logits(model, text)[:-1], torch.tensor(text[1:]))
    found = perplexity(LLM(model, prefill_chunk=chunk), text)
    assert found.tokens == len(text) - 1
    assert found.nll == pytest.approx(float(expected), rel=1e-5)
    assert found.to_dict()["perplexity"] == pytest.approx(float(expected.exp()), rel=1e-4)


def test_progress_covers_the_text(llm, text):
    done: list[int] = []
    fidelity(llm, text, STREAMING, 20, progress=done.append)
    assert sum(done) == len(text)


@pytest.mark.parametrize("prompt", [0, 48, 100])
def test_a_prompt_that_leaves_nothing_is_refused(llm, text, prompt):
    with pytest.raises(InputError, match=f"prompt_tokens={prompt}"):
        fidelity(llm, text, STREAMING, prompt)


def test_texts_that_cannot_be_measured_are_refused(llm, text):
    with pytest.raises(CapacityError, match="512 positions"):
        fidelity(llm, [5] * 600, STREAMING, 20)
    with pytest.raises(InputError, match="at least 2"):
        perplexity(llm, [5])
    with pytest.raises(InputError, match="token id 97"):
        perplexity(llm, [5, 97])
    with pytest.raises(PlanError):
        fidelity(llm, text, "nonsense", 20)
