"""Parts that are trained again while a model is open."""

import pytest
import torch

from models import small_model
from trials import small_convolutions, small_indexers
from winnow import LLM
from winnow.runtime.heads import HeadsConfig, RetainingHeads

PROMPT = 40
IDS = [(7 * i * i + 3 * i) % 64 for i in range(PROMPT + 4)]
PLANS = {
    "locret": "locret(budget=12, chunk=7, local=4, heads='{}')",
    "lococo": "lococo(budget=12, chunk=4, recent=4, convolutions='{}')",
    "indexer": "indexer(budget=8, sink=1, recent=2, trained='{}')",
}


def drawn(llm, policy, seed):
    if policy == "locret":
        return RetainingHeads.random(HeadsConfig.of(llm.model, llm.decoder.shape, 8), seed=seed)
    made = small_convolutions(llm) if policy == "lococo" else small_indexers(llm)
    return type(made).random(made.config, seed=seed)


@pytest.mark.parametrize("policy", PLANS)
def test_an_open_model_takes_what_its_directory_holds_now(tmp_path, policy):
    def logits(llm):
        return llm.logits(IDS, decode_from=PROMPT, plan=PLANS[policy].format(tmp_path))

    llm = LLM(small_model())
    drawn(llm, policy, 1).save(tmp_path)
    first = logits(llm)
    loaded = dict(llm.decoder.derived)
    assert torch.equal(logits(llm), first)
    assert llm.decoder.derived.items() >= loaded.items()  # nothing was loaded again
    drawn(llm, policy, 2).save(tmp_path)
    second = logits(llm)
    assert not torch.equal(second, first)
    assert torch.equal(second, logits(LLM(small_model())))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")  # listed, and not there any more
    assert torch.equal(logits(llm), second)
    for each in tmp_path.iterdir():
        each.unlink()
    assert torch.equal(logits(llm), second)
