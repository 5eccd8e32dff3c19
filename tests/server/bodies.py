"""Bodies that no client should send: valid ones with something wrong in them, and what is no JSON at all."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

CHAT = {
    "model": "tiny", "messages": [{"role": "user", "content": "Where to?"}], "max_tokens": 4, "temperature": 0.7,
    "seed": 3, "stop": ["."], "logprobs": True, "top_logprobs": 2, "plan": "streaming(sink=2, recent=9)",
    "logit_bias": {"17": 1.5}, "response_format": {"type": "text"}, "cache_salt": "salt", "n": 2,
}  # fmt: skip
COMPLETION = {
    "model": "tiny", "prompt": ["ab", "cd"], "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 1,
    "top_p": 0.9, "stream_options": {"include_usage": True}, "stream": True, "stop_token_ids": [5], "min_tokens": 1,
}  # fmt: skip
BY_SCHEMA = {
    "messages": CHAT["messages"], "max_tokens": 4, "response_format": {"type": "json_schema", "json_schema": {
        "name": "a", "schema": {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}}},
}  # fmt: skip
VALID = {
    "/v1/chat/completions": (CHAT, BY_SCHEMA),
    "/v1/completions": (COMPLETION, {"prompt": [5, 6, 7], "max_tokens": 2}),
    "/tokenize": ({"prompt": "ab"}, {"messages": CHAT["messages"]}),
    "/detokenize": ({"tokens": [5, 6, 7]},),
}
DEEP = 3000  # brackets within brackets
WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", " ",
    "x" * 5000, "\ud800", "\x00", "\u202e", "\U0010ffff", "é" * 300, "</s><bos>", "a" * 20 + "\n" * 20, [], {}, [[]],
    [None], [{}], {"": ""}, [1, "a"], [-1], [10**30], [2**31] * 3, ["", ""], {"type": "text"}, {"type": "image_url"},
    {"role": "user"}, {"role": 5, "content": []}, {"a": {"b": {"c": {}}}}, ["a"] * 200, [[5, 6], "ab"], [True, False],
    "full + full", "streaming(sink=10**9)", "streaming(recent=-1)", "locret(heads='/etc/passwd')", "f" * 3000,
    "(" * 150 + ")" * 150, "__import__('os')", "h2o(budget=1" + "0" * 60 + ")", "mapped", "speed(anchors='first:99')",
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, {"$ref": "https://example.invalid/x"},
    {"type": "string", "pattern": "(a+)+$"}, {"type": "array", "minItems": 10**9}, {"anyOf": [{}] * 300},
)  # fmt: skip
NAMES = ("tools", "user", "stream", "n", "plan", "prompt", "messages", "__proto__", "", "a" * 300, "\ud83d", "echo")


def hostile(seed: int) -> tuple[str, bytes]:
    """A path and a body for it; the same for the same seed."""
    source = random.Random(seed)
    path = source.choice(list(VALID))
    body: Any = copy.deepcopy(source.choice(VALID[path]))
    for _ in range(source.choice((0, 1, 1, 1, 2, 4))):
        body = _changed(body, source)
    try:
        said = json.dumps(body)
    except ValueError:  # Python writes no number of so many digits
        said = json.dumps(body, default=str).replace("1" + "0" * 400, "1e400")
    return path, _spoilt(said, source)


def _changed(body: Any, source: random.Random) -> Any:
    """The body with one value put in place of another, added, or taken away."""
    if source.random() < 0.02:
        return source.choice(WRONG)
    places = list(_places(body))
    if not places:
        return {source.choice(NAMES): source.choice(WRONG)}
    holder, key = source.choice(places)
    way = source.random()
    if way < 0.7:
        holder[key] = copy.deepcopy(source.choice(WRONG))
    elif way < 0.85 and isinstance(holder, dict):
        holder[source.choice(NAMES)] = copy.deepcopy(source.choice(WRONG))
    else:
        del holder[key]
    return body


def _places(thing: Any) -> Iterator[tuple[Any, Any]]:
    """Whatever is in a body: what holds it, and where."""
    inside = (
        list(thing.items()) if isinstance(thing, dict) else list(enumerate(thing)) if isinstance(thing, list) else []
    )
    for key, value in inside[:50]:
        yield thing, key
        yield from _places(value)


def _spoilt(said: str, source: random.Random) -> bytes:
    """Most of the time as it is; else cut short, with bytes that are no text, doubled, or nested deeply."""
    data, way = said.encode("utf-8", "surrogatepass"), source.random()
    if way < 0.04:
        return data[: source.randrange(len(data) + 1)]
    if way < 0.08:
        at = source.randrange(len(data) + 1)
        return data[:at] + bytes(source.randrange(256) for _ in range(3)) + data[at:]
    if way < 0.1:
        return data + data
    if way < 0.12:
        return said.encode("utf-16", "surrogatepass")
    if way < 0.14:
        return b"[" * DEEP + b"]" * DEEP
    if way < 0.16:
        return b'{"prompt": ' * DEEP + b"1" + b"}" * DEEP
    return data
