"""Prompts that are too long: refused, or cut where the caller says, and never the question or the template."""

import pytest

from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.errors import CapacityError, InputError
from winnow.runtime.truncate import cut, cut_document

TEN = list(range(10))
NEW = SamplingParams(max_tokens=2, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    model = tiny_model()
    model.config.max_position_embeddings = 20
    return LLM(model, tokenizer=byte_tokenizer())


@pytest.mark.parametrize(
    ("part", "left"), [("head", [4, 5, 6, 7, 8, 9]), ("middle", [0, 1, 2, 7, 8, 9]), ("tail", [0, 1, 2, 3, 4, 5])]
)
def test_the_part_that_is_named_goes(part, left):
    made = cut(TEN, 6, part)
    assert made.ids == left
    assert [each for each in TEN if not made.first <= each < made.stop] == left


@pytest.mark.parametrize("part", ["head", "middle", "tail"])
def test_what_may_not_go_stays(part):
    made = cut(TEN, 6, part, start=2, stop=9)
    assert len(made.ids) == 6
    assert (made.ids[:2], made.ids[-1]) == ([0, 1], 9)
    assert cut(TEN, 10, part).ids == TEN
    with pytest.raises(CapacityError, match="6 tokens of the prompt may not be taken away, and there is room for 5"):
        cut(TEN, 5, part, start=3, stop=7)


def test_a_prompt_that_is_too_long_is_refused_with_the_way_out(llm):
    with pytest.raises(CapacityError, match=r"30 tokens, more than the model's 20 positions; .*truncate"):
        llm.check([[5] * 30], NEW)


@pytest.mark.parametrize(("part", "first", "last"), [("head", 15, 29), ("middle", 5, 29), ("tail", 5, 23)])
def test_generate_and_stream_take_the_part(llm, part, first, last):
    ids = list(range(5, 35))
    [request] = llm.check([ids], NEW, truncate=part)
    assert len(request.ids) == 19  # and two new tokens, of which the last one is never fed
    assert request.ids == cut(ids, 19, part).ids
    whole = llm.generate([ids], NEW, truncate=part)[0]
    assert whole.token_ids == llm.generate([request.ids], NEW)[0].token_ids
    assert "".join(llm.stream(ids, NEW, truncate=part)) == whole.text
    assert llm.check([ids[:5]], NEW, truncate=part)[0].ids == ids[:5]


def test_the_token_that_begins_a_text_stays(llm):
    bos = llm.tokenizer.bos_token_id
    assert llm.check([[bos, *[9] * 40]], NEW, truncate="head")[0].ids == [bos, *[9] * 18]


def test_plans_that_need_no_more_positions_are_not_cut(llm):
    assert llm.room(2) == 19
    assert llm.room(2, "streaming(sink=2, recent=8)") is None
    # Above its cutoff a row sees the first token at its own distance.
    assert llm.room(2, "streaming(sink=2, recent=8) + speed(cutoff=1, self_only=True)") == 19
    assert len(llm.check([[5] * 90], NEW, plan="streaming(sink=2, recent=8)", truncate="head")[0].ids) == 90


@pytest.mark.parametrize("part", ["start", "", 5])
def test_an_unknown_part_is_refused(llm, part):
    with pytest.raises(InputError, match="must be head, middle or tail"):
        llm.check([[5]], NEW, truncate=part)


def test_a_document_is_cut_between_characters():
    tokenizer = byte_tokenizer()
    text = "<user>" + "é" * 20 + "\n\nWhat?<assistant>"
    whole = list(tokenizer(text)["input_ids"])
    for part in ("head", "middle", "tail"):
        for room in range(len(whole) - 30, len(whole)):
            made = cut_document(tokenizer, text, "é" * 20, room, part, rendered=True)
            left = tokenizer.decode(made.ids)
            assert room - 2 <= len(made.ids) <= room
            assert left == "<user>" + "é" * left.count("é") + "\n\nWhat?<assistant>"


def test_a_template_that_changes_the_document_is_refused():
    with pytest.raises(InputError, match="the chat template changes the document"):
        cut_document(byte_tokenizer(), "<user>TEXT<assistant>", "text", 5, "head", rendered=True)
