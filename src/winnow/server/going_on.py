"""Streams that another replica has begun: what events tell a front, and requests that go on from what it has passed on.

Clients see none of this: a service that is `fronted` answers nobody but its front.
"""

from collections import defaultdict
from collections.abc import Sequence

from winnow.engine.request import Output, Request
from winnow.server.errors import ApiError
from winnow.server.views import Json


class Trace:
    """Notes in every chunk the tokens that it shows, those without a text since the chunk before included."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[int, int], list[int]] = defaultdict(list)

    def note(self, output: Output, chunk: Json | None) -> None:
        """chunk: what shows an output; None: nothing does yet."""
        place = (output.prompt_index, output.sample_index)
        self._tokens[place] += output.token_ids
        if chunk is not None:
            chunk["choices"][0]["token_ids"] = self._tokens.pop(place)


def going_on(requests: Sequence[Request], given: Sequence[Sequence[int]], vocabulary: int) -> list[Request]:
    """The requests, with the tokens that their choices, in the order of these, have come to.

    vocabulary: how many ids there are. Raises ApiError, InputError.
    """
    if wrong := [token for tokens in given for token in tokens if not 0 <= token < vocabulary]:
        raise ApiError(400, f"given: there is no token {wrong[0]}; give ids below {vocabulary}", param="given")
    n = requests[0].params.n
    return [request.going_on(given[index * n : (index + 1) * n]) for index, request in enumerate(requests)]
