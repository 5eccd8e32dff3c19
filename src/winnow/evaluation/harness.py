"""Winnow as a model of lm_eval (EleutherAI's evaluation harness): likelihoods and answers under a plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jinja2 import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows

from winnow.errors import CapacityError, InputError
from winnow.evaluation.evaluate import silent
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.sampling import SamplingParams
from winnow.stats import Stats

Encoded = tuple[tuple[str, str], list[int], list[int]]  # lm_eval's: the texts, the context's ids, the continuation's
LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAME_NAMES = ("top_k", "top_p", "min_p", "repetition_penalty")  # mean here what they mean in SamplingParams
MAX_NEW_TOKENS = 256  # lm_eval's own where a task does not say


@dataclass
class Costs:
    """What requests cost, counted as in Stats and summed; a context that several continuations share counts once.

    requests: likelihoods and answers asked for. truncated: those whose context lost its beginning. cache_bytes: units
    held at the end of each request, summed; total_bytes: the most that any one held, of all. Rolling likelihoods, whole
    forwards under full attention, add rows only.
    """

    requests: int = 0
    truncated: int = 0
    prompt_tokens: int = 0
    rows_computed: int = 0
    rows_full: int = 0
    units_read: int = 0
    units_full: int = 0
    cache_bytes: int = 0
    total_bytes: int = 0

    def add(self, stats: Stats) -> None:
        """Count a run, or what it still cost after a part that is counted already."""
        self.prompt_tokens += stats.prompt_tokens
        self.rows_computed += stats.rows_computed
        self.rows_full += stats.rows_full
        self.units_read += stats.units_read
        self.units_full += stats.units_full
        self.cache_bytes += stats.cache_bytes
        self.total_bytes = max(self.total_bytes, stats.total_bytes)

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


class PlannedLM(TemplateLM):
    """An LLM under one plan, for `lm_eval.simple_evaluate(model=...)`; one sequence at a time.

    Contexts that are too long for the model lose their beginning, as in lm_eval's own model of transformers, and are
    counted in `costs.truncated`. seed: of answers that a task wants sampled. progress: called with the number of
    documents just met for the first time.
    Raises PlanError where the plan does not fit the model, InputError where the model has no tokenizer.
    """

    def __init__(self, llm: LLM, plan: str | Plan, *, seed: int = 0, progress: Callable[[int], None] = silent) -> None:
        super().__init__()
        if llm.tokenizer is None:
            raise InputError("the model has no tokenizer, and lm_eval asks in text; give one with a tokenizer.json")
        self.llm, self.plan, self.seed = llm, Plan.parse(plan), seed
        llm.prepare(self.plan)
        self.tokenizer = llm.tokenizer
        self.max_length = llm.decoder.shape.max_positions
        self.costs = Costs()
        self._progress = progress
        self._asked: list[Instance] = []
        self._met: set[tuple[str | None, int | None]] = set()

    @property
    def eot_token_id(self) -> int | None:
        token: int | None = self.tokenizer.eos_token_id
        return token

    @property
    def prefix_token_id(self) -> int:
        """What stands before an empty context: the token that begins a text, else the one that ends it."""
        begins: int | None = self.tokenizer.bos_token_id
        token = self.eot_token_id if begins is None else begins
        if token is None:
            raise InputError("a context is empty, and the tokenizer has no token that begins or ends a text")
        return token

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; a text that already begins with the beginning-of-text token gets no second one."""
        begins = self.tokenizer.bos_token is not None and string.startswith(self.tokenizer.bos_token)
        if add_special_tokens is None and not begins:
            return list(self.tokenizer(string)["input_ids"])
        return list(self.tokenizer(string, add_special_tokens=bool(add_special_tokens))["input_ids"])

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as text. Raises InputError where the model's template refuses it or there is none."""
        if not self.tokenizer.chat_template:
            raise InputError("the model has no chat template; run without --apply-chat-template")
        try:
            text = self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        except TemplateError as error:
            raise InputError(f"the model's chat template refuses a conversation of the task: {error}") from error
        return str(text)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """For each (context, continuation) of texts: ln P of the continuation, and whether it is the greedy one.

        The context is prefilled as the prompt. The continuation's first token is judged by the logits after it, and
        each token but the last is fed in a decode step of its own, so what the plan does to both phases shows.
        """
        self._asked = requests
        return list(super().loglikelihood(requests, disable_tqdm=True))

    def _loglikelihood_tokens(self, requests: list[Encoded], **kwargs: Any) -> list[tuple[float, bool]]:
        questions: dict[tuple[int, ...], list[int]] = {}  # the requests of each context
        for index, (texts, context, continuation) in enumerate(requests):
            if not continuation:
                raise InputError(f"the continuation {texts[1]!r} has no token of its own; its likelihood is undefined")
            cut = self._cut(context, len(continuation) - 1, f"a continuation of {len(continuation)} tokens")
            questions.setdefault(tuple(cut), []).append(index)
        longest = {ids: max(len(requests[i][2]) for i in indices) for ids, indices in questions.items()}
        for ids, new in longest.items():
            self.llm.check([ids], SamplingParams(max_tokens=new), plan=self.plan)
        found: dict[int, tuple[float, bool]] = {}
        for ids, indices in questions.items():
            found |= zip(indices, self._judge(list(ids), [requests[i][2] for i in indices]), strict=True)
            self._report([self._asked[i] for i in indices])
        return [found[index] for index in range(len(requests))]

    def _judge(self, context: list[int], continuations: Sequence[list[int]]) -> list[tuple[float, bool]]:
        """Each continuation after the same context, which is prefilled once."""
        llm, new = self.llm, max(map(len, continuations))
        session = llm.session(plan=self.plan, max_tokens=new)
        session.feed(context)
        before = session.stats
        self.costs.add(replace(before, cache_bytes=0))
        judged = []
        for continuation in continuations:
            fed = continuation[:-1]
            twin = session.fork() if fed else session  # a single token is judged and never fed
            rows = torch.cat((session.logits[None], twin.feed(fed))) if fed else session.logits[None]
            scores = rows.log_softmax(-1)[range(len(continuation)), continuation]
            self.costs.add(twin.stats.since(before))
            judged.append((float(scores.double().sum()), rows.argmax(-1).tolist() == continuation))
        return judged

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """ln P of each whole text under full attention, in windows of the model's length, each a whole forward.

        Every token is predicted once; the first after the token that begins a text, and a last window that is short
        sees as much of what came before as fits, as in lm_eval's own model of transformers.
        Raises InputError under any plan but full: a text without a prompt says nothing of what a plan does to one.
        """
        if not self.plan.is_full:
            raise InputError(f"rolling likelihoods are for the full plan, not {self.plan}; use winnow eval text")
        totals = []
        for request in requests:
            ids = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)
            totals.append(sum(self._window(seen, predicted) for seen, predicted in windows))
            self._report([request])
        return totals

    def _window(self, seen: list[int], predicted: list[int]) -> float:
        """ln P of the `predicted` tokens, each after those before it; they are `seen` but for the last."""
        llm, rows = self.llm, len(seen) * self.llm.decoder.shape.layers
        pieces = llm.surprisals([*seen, predicted[-1]])
        self.costs.add(Stats(prompt_tokens=len(seen), rows_computed=rows, rows_full=rows))
        return -float(torch.cat([piece.detach() for piece in pieces])[-len(predicted) :].double().sum())

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """The answer to each (context, generation keywords), without its stop strings and special tokens."""
        prepared = []
        for index, request in enumerate(requests):
            context, keywords = request.args
            params = sampling(keywords, self.seed + index)  # a task may ask for several samples of one context
            ids = self.tok_encode(context) or [self.prefix_token_id]
            prompt = self._cut(ids, params.max_tokens, f"max_gen_toks={params.max_tokens}")
            self.llm.check([prompt], params, plan=self.plan)
            prepared.append((request, prompt, params))
        texts = []
        for request, prompt, params in prepared:
            done = self.llm.generate([prompt], params, plan=self.plan)[0]
            self.costs.add(done.stats)
            self._report([request])
            texts.append(done.text)
        return texts

    def _cut(self, ids: list[int], new: int, asked: str) -> list[int]:
        """The last tokens of a context that leave room for `new` more positions."""
        room = self.max_length - new
        if room < 1:
            raise CapacityError(f"{asked} leaves no room for a prompt in the model's {self.max_length} positions")
        self.costs.truncated += len(ids) > room
        return ids[-room:]

    def _report(self, requests: Sequence[Instance]) -> None:
        self.costs.requests += len(requests)
        documents = {(request.task_name, request.doc_id) for request in requests} - self._met
        self._met |= documents
        self._progress(len(documents))


def sampling(keywords: Mapping[str, Any], seed: int = 0) -> SamplingParams:
    """What a task's generation keywords mean here: greedy unless it asks for samples.

    `do_sample: true` without a temperature is temperature 1; `do_sample: false` is greedy whatever the temperature.
    Raises InputError naming a keyword that is not known, or that is out of range.
    """
    given = {name: value for name, value in keywords.items() if value is not None}
    until, sample = given.pop("until", ()), given.pop("do_sample", None)
    lengths = [given.pop(name) for name in LENGTH_NAMES if name in given]
    warm = float(given.pop("temperature", 1.0 if sample else 0.0))
    if given.get("num_beams") == 1:
        del given["num_beams"]
    if unknown := [f"{name}={value!r}" for name, value in given.items() if name not in SAME_NAMES]:
        known = ", ".join(("until", "do_sample", "temperature", *LENGTH_NAMES, *SAME_NAMES))
        raise InputError(f"generation keywords that are not supported: {', '.join(unknown)}; those that are: {known}")
    return SamplingParams(
        max_tokens=int(lengths[0]) if lengths else MAX_NEW_TOKENS,
        temperature=0.0 if sample is False else warm,
        stop=tuple(text for text in ([until] if isinstance(until, str) else until) if text),
        seed=seed,
        **given,
    )
