"""From what was asked to what the engine takes: prompts, sampling parameters and the plan, all of them checked."""

import json
from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from winnow.engine.request import Request
from winnow.errors import WinnowError
from winnow.plan import Plan
from winnow.policies.prompt.spelling import Spelt, encode, spell_each
from winnow.reading import check_length, check_text
from winnow.runtime.llm import LLM
from winnow.sampling import SamplingParams
from winnow.server.errors import ApiError, refused
from winnow.server.fields import (
    AnyObject,
    Asking,
    BySchema,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Message,
    TokenizeBody,
)
from winnow.server.service import Service

TEMPERATURE = 1.0  # OpenAI's default


def completion_requests(service: Service, body: CompletionBody) -> list[Request]:
    """What /v1/completions was asked, a request per prompt. Raises ApiError."""
    before = body.logprobs if body.echo else None
    with_ids = [_encoded(service.llm, prompt, index) for index, prompt in enumerate(body.prompt)]
    wanted = 1 if asks_for_nothing_new(body) else body.max_tokens
    return _requests(service, body, with_ids, wanted, body.logprobs, before)


def asks_for_nothing_new(body: Asking) -> bool:
    """Whether only the prompt is to be shown. It is run with one token, which nobody is told."""
    return isinstance(body, CompletionBody) and body.echo and body.max_tokens == 0


def echoes(service: Service, body: CompletionBody) -> list[Spelt] | None:
    """What stands before each answer, with the characters of its tokens where probabilities are asked for; None:
    nothing does."""
    spans = body.logprobs is not None
    return [_echo(service.tokenizer, each, spans=spans) for each in body.prompt] if body.echo else None


def _echo(tokenizer: PreTrainedTokenizerBase, prompt: str | list[int], *, spans: bool) -> Spelt:
    if isinstance(prompt, str):
        return prompt, encode(tokenizer, prompt, special=True)[1] if spans else []
    return spell_each(tokenizer, prompt) if spans else (str(tokenizer.decode(prompt)), [])


def chat_requests(service: Service, body: ChatBody) -> list[Request]:
    """What /v1/chat/completions was asked. Raises ApiError."""
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise ApiError(400, "max_tokens and max_completion_tokens differ; give one of them", param="max_tokens")
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    count = (body.top_logprobs or 0) if body.logprobs else None
    return _requests(service, body, [rendered(service.llm, body.messages)], wanted, count, None)


def tokens_of(service: Service, body: TokenizeBody) -> list[int]:
    """Token ids of what /tokenize was given. Raises ApiError."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give one of prompt and messages")
    if body.messages is not None:
        if body.add_special_tokens is not None:
            raise ApiError(400, "add_special_tokens is about a prompt; leave it out", param="add_special_tokens")
        return rendered(service.llm, body.messages)
    assert body.prompt is not None
    if not body.prompt:
        return []
    if body.add_special_tokens is None or body.add_special_tokens:
        return _encoded(service.llm, body.prompt, 0)
    _fits(service.llm, body.prompt)
    try:
        check_text(body.prompt, "the prompt")
    except WinnowError as error:
        raise refused(error, param="prompt") from error
    return list(service.tokenizer(body.prompt, add_special_tokens=False, verbose=False)["input_ids"])


def detokenized(service: Service, body: DetokenizeBody) -> str:
    """The text of tokens. Raises ApiError."""
    if not body.tokens:
        return ""
    try:
        return str(service.tokenizer.decode(service.llm.token_ids(body.tokens)))
    except WinnowError as error:
        raise refused(error, param="tokens") from error


def rendered(llm: LLM, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation with the header of the answer."""
    spoken = [message.model_dump() for message in messages]
    for message in messages:
        parts = message.content if isinstance(message.content, list) else []
        _fits(llm, message.content if isinstance(message.content, str) else "".join(part.text for part in parts))
    try:
        return llm.render(spoken)
    except WinnowError as error:
        raise refused(error, param="messages", code="invalid_messages") from error


def _requests(
    service: Service,
    body: Asking,
    prompts: list[list[int]],
    wanted: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> list[Request]:
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options")
    fields = list(type(body).model_fields)
    try:
        plan = service.chosen(body.plan)
        if prompt_logprobs is not None and (shortcut := plan.shortcut) is not None:
            raise ApiError(
                400,
                f"echo with logprobs needs every token of the prompt in all layers, and {shortcut.name} leaves some "
                "out; use a plan without it",
                param="echo",
            )
        given = {name: value for name in body.sampled if (value := getattr(body, name)) is not None}
        given = {"temperature": TEMPERATURE} | given
        params = [
            SamplingParams(
                **given,
                max_tokens=_new(service, plan, ids) if wanted is None else wanted,
                json_schema=_schema(body),
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
            )
            for ids in prompts
        ]
        checked = service.llm.check(prompts, params, plan=plan)
        return [replace(request, salt=body.cache_salt) for request in checked]
    except WinnowError as error:
        raise refused(error, fields) from error


def _new(service: Service, plan: Plan, prompt: Sequence[int]) -> int:
    """How many tokens may follow a prompt whose request does not say: no more than there are positions for."""
    wanted = service.settings.default_max_tokens
    room = service.llm.room(wanted, plan)
    fits = room is None or len(prompt) <= room
    return wanted if fits else max(1, service.llm.decoder.shape.max_positions + 1 - len(prompt))


def _schema(body: Asking) -> str | None:
    if isinstance(body.response_format, BySchema):
        return json.dumps(body.response_format.json_schema.schema_)
    return '{"type": "object"}' if isinstance(body.response_format, AnyObject) else None


def _encoded(llm: LLM, prompt: str | list[int], index: int) -> list[int]:
    try:
        if isinstance(prompt, str):
            _fits(llm, prompt)
        return llm.token_ids(prompt, index)
    except WinnowError as error:
        raise refused(error, param="prompt") from error


def _fits(llm: LLM, text: str) -> None:
    """A text of far too many characters is not even encoded."""
    try:
        check_length(text, "the prompt", llm.decoder.shape.max_positions)
    except WinnowError as error:
        raise refused(error, param="prompt") from error
