"""In which layer a question finds its answer: against the stock model's attention maps."""

from dataclasses import dataclass, replace

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM
from winnow.diagnosis.needles import (
    VOTES,
    Needle,
    Ranks,
    answer_tokens,
    needed,
    search_needles,
    summarise_needles,
)
from winnow.errors import InputError
from winnow.evaluation.evaluate import cases
from winnow.tasks import task


@dataclass(frozen=True)
class Unanswered:
    """A task whose answer is in no prompt."""

    name: str = "unanswered"

    def example(self, rng, **others):
        return replace(task("number").example(rng, **others), answers=("nowhere to be found",))

    def score(self, *given):
        return 0.0


def windowed_model(**settings):
    """Random weights; every other layer has a window."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=259, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, sliding_window=64, max_position_embeddings=4096, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, query_pre_attn_scalar=8, **settings,
    )  # fmt: skip
    return Gemma2ForCausalLM(config).eval()


def llm_of(model):
    return LLM(model, tokenizer=byte_tokenizer(None))


@torch.inference_mode()
def stock(model, ids, places, voters, kernel, before):
    """Per layer, by vote, in plain Python over the stock model's maps."""
    model.set_attn_implementation("eager")
    maps = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    tokens, ahead = len(ids), min(before, kernel // 2)
    behind = kernel - 1 - ahead
    found, most = [], torch.zeros(tokens)
    for (weights,) in maps:
        voting = weights[:, -voters:]
        votes = {"last": weights[:, -1].mean(0), "mean": voting.mean((0, 1)), "max": voting.amax(1).mean(0)}
        most = votes["all"] = most.maximum(votes["max"])
        shares = {}
        for name, each in votes.items():
            among = each[: tokens - voters].tolist()
            best = [max(among[max(0, i - behind) : i + ahead + 1]) for i in range(len(among))]
            worst = min(best[place] for place in places)
            shares[name] = (sum(value >= worst for value in best) + voters) / tokens
        found.append(shares)
    return found


@pytest.mark.parametrize("ranks", [(8, 5, 7), (1, 1, 7), (20, 31, 15), (20, 31, 3), (8, 21, 0)])
def test_equals_the_stock_models_maps(ranks):
    llm, asked = llm_of(tiny_model()), [task("number")]
    done = []
    found = list(search_needles(llm, asked, 700, 2, ranks=Ranks(*ranks), progress=done.append))
    assert len(found) == 2
    assert sum(done) == sum(each.tokens for each in found)
    for each, case in zip(found, cases(llm, asked, [700], 2), strict=True):
        places = answer_tokens(llm.tokenizer, case)
        text = "".join(llm.tokenizer.decode([case.ids[place]]) for place in places)
        assert text == case.example.answers[0]
        expected = stock(tiny_model(), case.ids, places, *ranks)
        for mine, theirs in zip(each.shares, expected, strict=True):
            assert mine == pytest.approx(theirs, abs=2.5 / each.tokens)  # rounding turns ranks around


def test_tokens_beside_the_best_go_on_with_it_and_the_last_ones_in_any_case():
    votes = torch.tensor([0.1, 0.0, 0.9, 0.0, 0.2, 0.0, 0.0, 0.5])
    assert needed(votes, [2], Ranks(1, 1)) == 2 / 8
    assert needed(votes, [3], Ranks(1, 3)) == 4 / 8  # 1 and 3 are beside 2
    assert needed(votes, [4], Ranks(1, 3, 0)) == 4 / 8  # 3 and 4 are behind 2
    assert needed(votes, [1], Ranks(1, 3, 0)) == 1  # 1 stands before 2
    assert needed(votes, [0], Ranks(1, 1)) == 4 / 8
    assert needed(votes, [7], Ranks(1, 1)) == 1 / 8
    assert needed(votes, [7], Ranks(20, 1)) == 1


def test_layers_with_a_window_are_not_asked():
    llm = llm_of(windowed_model())
    windows = llm.decoder.shape.windows
    [found] = search_needles(llm, [task("number")], 600, 1, ranks=Ranks(4, 3))
    assert [shares is None for shares in found.shares] == [window is not None for window in windows]
    assert any(windows)
    summary = summarise_needles([found], Ranks(4, 3), (None,) * len(windows))
    assert [layer is None for layer in summary.layers] == [window is not None for window in windows]


def test_the_first_layer_that_finds_it_and_the_vote_that_needs_least():
    def needle(*shares):
        return Needle("t", 100, tuple(dict(zip(VOTES, each, strict=True)) for each in shares))

    found = [
        needle((0.9, 0.9, 0.5, 0.5), (0.3, 0.05, 0.02, 0.1), (0.01,) * 4),
        needle((0.9,) * 4, (0.3, 0.2, 0.04, 0.1), (0.01,) * 4),
    ]
    summary = summarise_needles(found, Ranks(), (None, 0.3, 0.9))
    assert summary.first == (1, "max")
    assert summary.layers[1]["max"].most == 0.04
    assert summary.layers[1]["mean"].median == pytest.approx(0.125)
    told = summary.to_dict()
    assert told["first"] == {"layer": 1, "votes": "max"}
    assert (told["repeated"], told["finds"]) == ((None, 0.3, 0.9), 1)
    # Above the last layer there is nothing to stop at.
    assert summarise_needles([needle((0.9,) * 4, (0.01,) * 4)], Ranks(), (0.1, 0.9)).first is None


@pytest.mark.parametrize(("prompts", "enough"), [(1, 1), (9, 9), (10, 9), (11, 10), (20, 18), (24, 22), (40, 36)])
def test_what_is_enough_in_nine_of_ten(prompts, enough):
    found = [Needle("t", 100, (dict.fromkeys(VOTES, place / 100),)) for place in range(1, prompts + 1)]
    [layer] = summarise_needles(found, Ranks(), [None]).layers
    assert layer["max"].most == enough / 100


def test_what_cannot_be_looked_for_is_refused_before_any_work():
    llm = llm_of(tiny_model())
    with pytest.raises(InputError, match=r"kernel=4 must be odd.*use 5"):
        search_needles(llm, [task("number")], 600, 1, ranks=Ranks(kernel=4))
    with pytest.raises(InputError, match=r"task unanswered: .* not stand in its prompt.*take a task with a needle"):
        search_needles(llm, [task("number"), Unanswered()], 900, 1)
    with pytest.raises(InputError, match=r"every layer of the model has a window"):
        next(search_needles(llm_of(windowed_model(layer_types=["sliding_attention"] * 4)), [task("number")], 600, 1))
    with pytest.raises(InputError, match="has no tokenizer"):
        search_needles(LLM(tiny_model()), [task("number")], 600, 1)
