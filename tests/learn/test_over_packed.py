"""The packed forward against its definition, and what gradients may and may not reach."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from covering import covered
from models import CONFIGS, small_model, stock_logits
from speed_reference import SEVERAL, SINGLE, conversation, dense_loss
from winnow import LLM, Plan
from winnow.learn.chat import Conversation
from winnow.learn.packed import packed_forward, packed_logits, packed_loss
from winnow.learn.rows import Batch
from winnow.policies.compute.speed import Speed
from winnow.runtime.decoder import Decoder


def loss_of(model: PreTrainedModel, conversations: list[Conversation], policy: Speed, **settings: bool) -> Tensor:
    decoder = Decoder(model)
    with decoder.driving():
        return packed_loss(decoder, Batch.of(conversations, policy.anchors, policy.decode_from), policy, **settings)


def gradients(model: PreTrainedModel, loss: Tensor) -> dict[str, Tensor]:
    """Of every parameter, zeros where none arrives."""
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g
        for (name, p), g in zip(model.named_parameters(), found, strict=True)
    }


def same_training(model: PreTrainedModel, conversations: list[Conversation], policy: Speed) -> None:
    tokens = sum(each.supervised for each in conversations)
    packed, dense = loss_of(model, conversations, policy) / tokens, dense_loss(model, conversations, policy) / tokens
    torch.testing.assert_close(packed, dense, rtol=0, atol=1e-5)
    mine, theirs = gradients(model, packed), gradients(model, dense)
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-4, atol=1e-5, msg=lambda m, name=name: name + m)


@pytest.mark.parametrize("name", CONFIGS)
def test_loss_and_gradients_are_those_of_the_dense_mask(name: str) -> None:
    same_training(small_model(name), [SEVERAL, SINGLE], Speed(cutoff=2))


@covered(cutoff=[1, 3], anchors=["none", "bos", "system", "first:4", "last:2", "bos+last:3", "random:2", "all"])
def test_every_anchor_set_at_other_cutoffs(anchors: str, cutoff: int) -> None:
    same_training(small_model("llama"), [SINGLE, SEVERAL], Speed(cutoff=cutoff, anchors=anchors))


@covered(name=["llama", "mistral", "gemma2", "cohere2", "gpt_oss"], anchors=["none", "bos"])
def test_self_only(name: str, anchors: str) -> None:
    same_training(small_model(name), [SEVERAL, SINGLE], Speed(cutoff=2, anchors=anchors, self_only=True))


def test_the_decode_phase_from_the_last_prompt_token() -> None:
    same_training(small_model("llama"), [SEVERAL], Speed(cutoff=2, decode_from="last:1"))
    one, two = (loss_of(small_model("llama"), [SEVERAL], Speed(cutoff=2, decode_from=f"last:{m}")) for m in (1, 2))
    assert abs(one - two) > 1e-3


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cutoff_of_all_layers_is_the_stock_model(name: str) -> None:
    model = small_model(name)
    expected = [
        F.cross_entropy(
            stock_logits(model, list(each.ids))[turn.answer - 1 : turn.end - 1],
            torch.tensor(list(each.ids[turn.answer : turn.end])),
            reduction="sum",
        )
        for each in (SEVERAL, SINGLE)
        for turn in each.turns
    ]
    torch.testing.assert_close(
        loss_of(model, [SEVERAL, SINGLE], Speed(cutoff=1.0)), torch.stack(expected).sum(), rtol=1e-5, atol=1e-5
    )


@covered(name=[name for name in CONFIGS if name != "llama-dynamic"], anchors=["bos", "first:3+last:2", "none"])
def test_logits_are_those_of_decoding_token_by_token(name: str, anchors: str) -> None:
    model, policy = small_model(name), Speed(cutoff=2, anchors=anchors, decode_from="last:2")
    row = conversation(40, [(28, 30, 40)])
    decoder = Decoder(model)
    with decoder.driving(), torch.no_grad():
        packed = packed_logits(decoder, Batch.of([row], anchors, policy.decode_from), policy)
    decoded = LLM(model).logits(list(row.ids[:-1]), decode_from=30, plan=Plan(compute=policy))
    torch.testing.assert_close(packed, decoded, rtol=0, atol=1e-5)


@pytest.mark.parametrize("self_only", [False, True])
def test_one_loss_is_the_weighted_mean_of_the_turns_losses(self_only: bool) -> None:
    model, policy = small_model("llama"), Speed(cutoff=2, self_only=self_only)
    apart = [Conversation(SEVERAL.ids[: turn.end], (turn,), SEVERAL.system) for turn in SEVERAL.turns]
    means = torch.stack([loss_of(model, [each], policy) / each.supervised for each in apart])
    weights = torch.tensor([each.supervised for each in apart])
    together = loss_of(model, [SEVERAL], policy) / SEVERAL.supervised
    torch.testing.assert_close(together, (means * weights).sum() / weights.sum(), rtol=1e-5, atol=0)


def test_batch_mates_change_nothing() -> None:
    model, policy = small_model("mistral"), Speed(cutoff=2)
    apart = loss_of(model, [SEVERAL], policy) + loss_of(model, [SINGLE], policy)
    torch.testing.assert_close(loss_of(model, [SINGLE, SEVERAL], policy), apart, rtol=1e-6, atol=1e-5)


@contextmanager
def kept(model: PreTrainedModel, layer: int) -> Iterator[list[Tensor]]:
    """The hidden states that enter a layer, with their gradients."""
    found: list[Tensor] = []

    def keep(module: torch.nn.Module, args: tuple[Tensor]) -> None:
        args[0].retain_grad()
        found.append(args[0])

    handle = model.model.layers[layer].register_forward_pre_hook(keep)
    try:
        yield found
    finally:
        handle.remove()


def test_gradients_reach_the_whole_prompt_through_the_lower_layers_only() -> None:
    model, ids = small_model("llama"), list(range(3, 33))
    row = Conversation(ids=SEVERAL.ids.__class__("i", ids), turns=SEVERAL.turns[-1:], system=2)
    with kept(model, 1) as below, kept(model, 2) as above:
        loss = loss_of(model, [row], Speed(cutoff=2))
        loss.backward()
    rows = below[0].grad.abs().sum(-1)[0]
    assert (rows[:22] > 0).all()  # system, earlier turns, user and header
    assert above[0].shape[1] == 1 + 10  # nothing of the prompt but its first token goes on
    embeddings = model.model.embed_tokens.weight.grad.abs().sum(-1)
    assert (embeddings[[3, 5, 20, 23, 24]] > 0).all()  # one each of system, earlier turn, user and header
    for layer in model.model.layers:
        assert layer.self_attn.q_proj.weight.grad.abs().sum() > 0
        assert layer.mlp.down_proj.weight.grad.abs().sum() > 0


def test_no_path_leads_from_upper_layers_to_a_prompt_token_that_is_no_anchor() -> None:
    model = small_model("llama")
    found: list[Tensor] = []

    def keep(module: torch.nn.Module, args: object, out: Tensor) -> None:
        out.retain_grad()
        found.append(out)

    handle = model.model.layers[1].register_forward_hook(keep)
    loss_of(model, [SEVERAL, SINGLE], Speed(cutoff=2, anchors="first:2")).backward()
    handle.remove()
    reached = found[0].grad.abs().sum(-1)[0] > 0
    turns = [*range(5, 8), *range(12, 16), *range(20, 29)]  # the last token of a turn predicts nothing
    expected = [0, 1, *turns, 30, 31, *range(30 + 11, 30 + 18)]
    assert reached.nonzero()[:, 0].tolist() == expected


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3_moe"])
def test_checkpointing_changes_no_gradient(name: str) -> None:
    model, policy = small_model(name), Speed(cutoff=2)
    decoder = Decoder(model)
    batch = Batch.of([SEVERAL, SINGLE], "bos", "header")
    with decoder.driving():
        plain, saved = (
            gradients(model, packed_loss(decoder, batch, policy, checkpointing=flag)) for flag in (False, True)
        )
    for name in plain:
        torch.testing.assert_close(saved[name], plain[name], rtol=0, atol=1e-6)


def test_the_models_own_forward_gives_the_loss_and_is_stock_again_afterwards() -> None:
    model, policy = small_model("llama"), Speed(cutoff=2)
    before = stock_logits(model, list(SINGLE.ids))
    decoder = Decoder(model)
    batch = Batch.of([SINGLE, SEVERAL], "bos", "header")
    with packed_forward(decoder, partial(packed_loss, decoder, policy=policy)):
        alone = model(**vars(batch))["loss"]
        shared = model(**vars(batch), num_items_in_batch=torch.tensor(100))["loss"]
    with pytest.raises(KeyError), packed_forward(decoder, partial(packed_loss, decoder, policy=policy)):
        model(input_ids=batch.input_ids)
    torch.testing.assert_close(alone * 19, shared * 100)  # 13 + 6 supervised tokens
    assert "forward" not in vars(model)
    assert torch.equal(stock_logits(model, list(SINGLE.ids)), before)


@covered(self_only=[False, True], name=["llama", "mistral", "gemma2", "cohere2", "gpt_oss"])
def test_mixed_precision_stays_close(name: str, self_only: bool) -> None:
    model, policy = small_model(name), Speed(cutoff=2, self_only=self_only)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = loss_of(model, [SEVERAL, SINGLE], policy)
    gradients(model, mixed)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, loss_of(model, [SEVERAL, SINGLE], policy), rtol=0.01, atol=0)
