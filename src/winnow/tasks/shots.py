"""Many worked examples in one prompt, then one more to be answered."""

from collections.abc import Callable, Sequence

from winnow.errors import InputError
from winnow.tasks.draw import Draw
from winnow.tasks.example import Example
from winnow.tasks.fill import fill_with_records

_SAMPLE = 64  # shots tokenised to guess how long one is


def fill_with_shots(shots: Sequence[str], build: Callable[[str], Example], draw: Draw) -> Example:
    """The example of the first of `shots`, a blank line between them, that fit the tokens wanted, to within one shot.

    Raises InputError if not even two fit, or if all of them do not fill the prompt.
    """
    sample = shots[:_SAMPLE]

    def of(count: int) -> Example:
        if count > len(shots):
            raise InputError(
                f"{draw.tokens} tokens need {count} worked examples, but the data has {len(shots)}; use fewer"
            )
        return build("\n\n".join(shots[:count]))

    return fill_with_records(of, draw, "\n\n".join(sample), max(1, len(sample)))
