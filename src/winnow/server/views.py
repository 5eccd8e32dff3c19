"""Answers as OpenAI's objects: whole ones, and the chunks of a stream; joined, the chunks are the whole."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from winnow import __version__
from winnow.engine.request import Completion, Likeliest, Output, Request
from winnow.engine.text import TextStream
from winnow.policies.prompt.spelling import Span, Spelt
from winnow.server.spelling import Spelling

Json = dict[str, Any]


class View:
    """One request's answer. count: of the likeliest tokens to report; None: no probabilities."""

    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(self, model: str, spelling: Spelling, requests: Sequence[Request], count: int | None) -> None:
        self.spelling, self.requests, self.count = spelling, requests, count
        self._about = {"created": int(time.time()), "model": model, "system_fingerprint": f"winnow-{__version__}"}
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"

    def whole(self, completions: Sequence[Completion], usage: Json) -> Json:
        """All at once; completions in the order of prompts and samples."""
        return {**self.frame(self.whole_kind, [self.choice(each) for each in completions]), "usage": usage}

    def frame(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self._id, "object": kind, **self._about, "choices": choices}

    def place(self, prompt: int, sample: int) -> int:
        """The index of a choice."""
        return prompt * self.requests[0].params.n + sample

    def opening(self) -> Iterator[Json]:
        """Chunks that come before there is any token."""
        return iter(())

    def chunk(self, output: Output) -> Json | None:
        """What a step brought; None where there is nothing to show yet."""
        if not (output.text or output.completion is not None or (self.count is not None and output.token_ids)):
            return None
        return self.frame(self.chunk_kind, [self.delta(output)])

    def choice(self, completion: Completion) -> Json:
        raise NotImplementedError

    def delta(self, output: Output) -> Json:
        raise NotImplementedError


class CompletionView(View):
    """Of /v1/completions. echoed: the prompts as text, and the characters of their tokens, where they come before
    their answers."""

    whole_kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, *given: Any, echoed: Sequence[Spelt] | None) -> None:
        super().__init__(*given)
        self._echoed = echoed
        self._begun: set[int] = set()  # choices of which a part has been shown
        self._said: dict[int, TextStream] = {}  # by each of them

    def choice(self, completion: Completion) -> Json:
        return self._shown(completion, completion.finish_reason)

    def delta(self, output: Output) -> Json:
        return self._shown(output, None if output.completion is None else output.completion.finish_reason)

    def _shown(self, come: Completion | Output, finish_reason: str | None) -> Json:
        """A choice as far as it has come, with what stands before it where this is its first part."""
        index = self.place(come.prompt_index, come.sample_index)
        echo, spans = ("", []) if self._echoed is None else self._echoed[come.prompt_index]
        first = index not in self._begun
        self._begun.add(index)
        shown = {"index": index, "text": echo * first + come.text, "logprobs": None, "finish_reason": finish_reason}
        if self.count is not None:
            shown["logprobs"] = self._logprobs(come, index, len(echo), spans if first else [])
        return shown

    def _logprobs(self, come: Completion | Output, index: int, before: int, spans: list[Span]) -> Json:
        """before: characters of what is echoed; spans: of its tokens, where these are shown, too."""
        prompt = self.requests[come.prompt_index].ids
        if index not in self._said:
            self._said[index] = TextStream(self.spelling.tokenizer, (), prompt)
        said, starts = self._said[index], [start for start, _ in spans]
        for token in come.token_ids:
            starts.append(before + len(said.text))
            said.push(token)
        found = [*(come.prompt_logprobs or ()), *(come.logprobs or ())] if spans else come.logprobs or []
        return self.spelling.classic([*prompt[: len(spans)], *come.token_ids], found, starts)


class ChatView(View):
    """Of /v1/chat/completions."""

    whole_kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def opening(self) -> Iterator[Json]:
        for sample in range(self.requests[0].params.n):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": sample, "delta": delta, "logprobs": None, "finish_reason": None}
            yield self.frame(self.chunk_kind, [choice])

    def choice(self, completion: Completion) -> Json:
        return {
            "index": self.place(completion.prompt_index, completion.sample_index),
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": self._logprobs(completion.token_ids, completion.logprobs),
            "finish_reason": completion.finish_reason,
        }

    def delta(self, output: Output) -> Json:
        return {
            "index": self.place(output.prompt_index, output.sample_index),
            "delta": {"content": output.text} if output.text else {},
            "logprobs": self._logprobs(output.token_ids, output.logprobs),
            "finish_reason": None if output.completion is None else output.completion.finish_reason,
        }

    def _logprobs(self, tokens: Sequence[int], found: Sequence[Likeliest] | None) -> Json | None:
        if self.count is None:
            return None
        return {"content": self.spelling.spoken(tokens, found or [], self.count), "refusal": None}
