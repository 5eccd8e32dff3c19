"""Many worked examples in one prompt, then one more to be answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError
from winnow.tasks.example import Example
from winnow.tasks.fill import fill_with_records

_SAMPLE = 64  # shots tokenised to guess how long one is


def fill_with_shots(
    shots: Sequence[str], build: Callable[[str], Example], *, tokens: int, tokenizer: PreTrainedTokenizerBase
) -> Example:
    """The example of the first of `shots`, a blank line between them, that fit `tokens` tokens, to within one shot.

    Raises InputError if not even two fit, or if all of them do not fill `tokens`.
    """
    sample = shots[:_SAMPLE]
    per_record = len(tokenizer("\n\n".join(sample), add_special_tokens=False)["input_ids"]) / max(1, len(sample))

    def of(count: int) -> Example:
        if count > len(shots):
            raise InputError(f"{tokens} tokens need {count} worked examples, but the data has {len(shots)}; use fewer")
        return build("\n\n".join(shots[:count]))

    return fill_with_records(of, per_record=per_record, tokens=tokens, tokenizer=tokenizer)
