"""Whether an answer got stuck: a model that has lost the thread often repeats itself until it is stopped."""

from collections.abc import Sequence

TIMES = 3  # in a row


def loops(token_ids: Sequence[int], finish_reason: str | None) -> bool:
    """Whether an answer ran into its length limit while repeating itself.

    It does if its last tokens, up to the very end, are some run of tokens three times over; the run may be a single
    token, and it may be cut anywhere by the limit. An answer that ended by itself never loops.

    token_ids: the new tokens. finish_reason: as in Completion; "length" is the limit.
    Source: SPEED, arXiv:2605.06105, reports suffix-repetition loops; the definition is ours.
    """
    if finish_reason != "length":
        return False
    tokens = list(token_ids)
    # Three times over is: each of the last 2 m tokens equals the one m before it.
    return any(tokens[-(TIMES - 1) * m :] == tokens[-TIMES * m : -m] for m in range(1, len(tokens) // TIMES + 1))
