"""The bodies of requests: what may be asked for, by name and type; all else is refused by name."""

import difflib
from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from winnow.server.errors import clean

MOST = 4096  # messages, or parts of one
# OpenAI's fields that are not supported, and values of them that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (), "best_of": (1,), "function_call": ("none", "auto"), "functions": ([],), "metadata": ({},),
    "modalities": (["text"],), "parallel_tool_calls": (True, False), "prediction": (), "prompt_cache_key": (),
    "prompt_cache_retention": (), "reasoning_effort": (), "safety_identifier": (), "service_tier": ("auto", "default"),
    "store": (False,), "suffix": ("",), "tool_choice": ("none", "auto"), "tools": ([],), "user": (), "verbosity": (),
    "web_search_options": (), "refusal": (), "tool_calls": ([],), "annotations": ([],), "include_obfuscation": (False,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "add_generation_prompt": (True,),
}  # fmt: skip


class Body(BaseModel):
    """An object whose fields have exactly their types; null, and OpenAI's own defaults, are as good as left out."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        asked = {name: value for name, value in given.items() if value is not None}
        for name in [name for name in asked if name not in known]:
            if name in NEUTRAL and asked[name] in NEUTRAL[name]:
                del asked[name]
            else:
                # What is said is no template, and the field is no place that pydantic knows of; nor need it be text.
                field = clean(name[:80])
                raise PydanticCustomError("field", "{said}", {"said": _unusable(field, known), "field": field})
        return asked


def _unusable(name: str, known: Collection[str]) -> str:
    if name in NEUTRAL:
        return "not supported by this server; leave it out"
    close = difflib.get_close_matches(name, known, n=1)
    return f"there is no such field{f': did you mean {close[0]}?' if close else ''}; leave it out"


class TextPart(Body):
    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") != "text":
            raise ValueError(f"parts of type {given.get('type')!r:.80} are not supported; the model reads text")
        return given


class Message(Body):
    role: str
    content: str | Annotated[list[TextPart], Field(max_length=MOST)]


class AnyText(Body):
    type: Literal["text"]


class AnyObject(Body):
    type: Literal["json_object"]


class Schema(Body):
    name: str = Field(max_length=64)
    description: str | None = None  # for models that are shown it; the schema alone decides what may be said
    strict: bool | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class BySchema(Body):
    type: Literal["json_schema"]
    json_schema: Schema


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False


def _prompts(given: Any) -> list[str | list[int]]:
    """Text, token ids, or a list of either, as a list; numbers are looked at later."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(isinstance(each, str) or (isinstance(each, list) and each) for each in given):
            return given
        if all(isinstance(each, int) for each in given):
            return [given]
    raise ValueError("must be text, token ids, or a list of either, and not empty")


def _biases(given: Any) -> Any:
    if isinstance(given, dict) and all(key.isascii() and key.isdigit() and len(key) < 10 for key in given):
        return {int(key): value for key, value in given.items()}
    raise ValueError('must be token ids with biases, such as {"17": -100}')


Texts = Annotated[list[str], Field(min_length=1)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(_prompts, json_schema_input_type=str | Texts | Ids | Annotated[list[Ids], Field(min_length=1)]),
]
New = Annotated[int, Field(le=2**31 - 1)]  # figures of it are floats
Biases = Annotated[dict[int, float], Field(max_length=1024), BeforeValidator(_biases)]
Stops = str | Annotated[list[str], Field(max_length=16)]
Top = Annotated[int, Field(ge=0, le=20)]


class Asking(Body):
    """What both kinds of completions take. Fields that SamplingParams has mean what they mean there."""

    sampled: ClassVar = (
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "logit_bias", "seed", "n", "stop", "stop_token_ids", "ignore_eos", "min_tokens",
    )  # fmt: skip

    model: str | None = None
    plan: Annotated[str, Field(max_length=2000)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    max_tokens: New | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, BeforeValidator(lambda given: 0 if given == -1 else given)] | None = None  # vLLM's "off"
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Biases | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stops | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    response_format: Annotated[AnyText | AnyObject | BySchema, Field(discriminator="type")] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


class CompletionBody(Asking):
    prompt: Prompts
    echo: bool = False
    logprobs: Top | None = None


class ChatBody(Asking):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST)]
    max_completion_tokens: New | None = None
    logprobs: bool = False
    top_logprobs: Top | None = None


class CompletionOn(Body):
    """What a front sends where a replica has gone. given: the tokens of every choice that clients have seen."""

    asked: CompletionBody
    given: list[list[int]]


class ChatOn(Body):
    """The same of a chat."""

    asked: ChatBody
    given: list[list[int]]


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST)] | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]


class Reason(BaseModel):
    """What is wrong, and with which field; code: OpenAI's word where it has one."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    """Every answer that is an error, and the last event of a stream that fails."""

    error: Reason
