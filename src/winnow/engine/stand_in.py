"""What a compute policy says of a prompt that is not there: a conversation of so many tokens in the chat template."""

from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from winnow.errors import InputError
from winnow.plan import Plan
from winnow.policies.compute.base import Deep
from winnow.policies.compute.turns import decode_start

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SHOWN = 2**18  # tokens of a longer prompt that a policy is shown: texts may have no end


class StandIn:
    """A user's message of any length, before and behind it what the chat template puts there.

    tokenizer: called where a plan asks what the tokens of a prompt are; what it returns may have no template, and may
    be none.
    """

    def __init__(self, tokenizer: "Callable[[], PreTrainedTokenizerBase | None]") -> None:
        self._tokenizer = tokenizer

    def deep_of(self, plan: Plan) -> Callable[[int], Deep]:
        """Tokens of a prompt -> those that go through all layers. Raises InputError as `ComputePolicy.full_depth`."""
        if plan.compute.identity:
            return Deep.none

        def deep(tokens: int) -> Deep:
            shown = min(tokens, SHOWN)
            while True:
                try:
                    found = plan.compute.full_depth(self.ids(shown), self._services)
                    return found if shown == tokens else _longer(found, tokens - shown)
                except InputError:  # it names more tokens than are shown
                    if shown == tokens:
                        raise
                    shown = min(tokens, 2 * shown)

        return deep

    def ids(self, tokens: int) -> list[int]:
        """Such a conversation of so many tokens; of fewer than the template has, its last ones."""
        before, behind = self._around
        if tokens <= len(behind):
            return behind[len(behind) - tokens :]
        filled = before + [before[-1] if before else 0] * max(0, tokens - len(before) - len(behind))
        return filled[: tokens - len(behind)] + behind

    @cached_property
    def _services(self) -> Any:
        return SimpleNamespace(template=self._template)

    @cached_property
    def _template(self) -> "PreTrainedTokenizerBase | None":
        found = self._tokenizer()
        return found if found is not None and found.chat_template else None

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The conversation up to its answer's header, and that header."""
        if self._template is None:
            return [0], []
        talk = [{"role": "user", "content": "a"}]
        made: Any = self._template.apply_chat_template(
            talk, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        ids = list(made["input_ids"])
        at = decode_start(ids, self._template)
        return ids[:at], ids[at:]


def _longer(deep: Deep, more: int) -> Deep:
    """What is said of the same prompt with so many tokens more where there are most of which none goes on; or, where
    all do, with more of those."""
    if len(deep.anchors) == deep.start:
        return Deep((), 0, deep.prompt + more)
    edges = (-1, *deep.anchors, deep.start)
    before = max(range(len(edges) - 1), key=lambda place: edges[place + 1] - edges[place])
    anchors = (*deep.anchors[:before], *(each + more for each in deep.anchors[before:]))
    return Deep(anchors, deep.start + more, deep.prompt + more)
