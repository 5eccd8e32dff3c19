"""What each token adds to a text."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from winnow.policies.compute.spelling import LONGEST, UNDECODED


def token_texts(tokenizer: PreTrainedTokenizerBase | None, ids: Sequence[int]) -> list[str]:
    """Per token its text, special tokens by their name; joined they are the whole text.

    A token that is only a part of a character adds nothing, the one that completes the character adds it. Without a
    tokenizer the ids stand for themselves.
    """
    if tokenizer is None:
        return [f"[{token}]" for token in ids]
    texts: list[str] = []
    # A token's text may depend on the one before it (a leading space), so a little context is always decoded with it.
    context = done = 0
    for stop in range(1, len(ids) + 1):
        known, now = _decode(tokenizer, ids[context:done]), _decode(tokenizer, ids[context:stop])
        unfinished = now.endswith(UNDECODED) and stop - done < LONGEST and stop < len(ids)
        texts.append("" if unfinished else now[len(known) :])
        if not unfinished:
            context, done = done, stop
    return texts


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
