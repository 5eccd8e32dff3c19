"""Batches: rows of token ids with a loss weight and a rope position for every token."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from winnow.tasks.haystack import Haystack

from .config import Stage
from .conversations import Conversation, draw_conversation

ANSWER, QUESTION = 2.5, 0.05  # loss weights; ordinary text has the weight of the stage
_PROSE_SAMPLE = 0.25  # share of the text tokens of a conversation that carry a loss: the output layer is costly


@dataclass
class Batch:
    """All arrays are [rows, tokens]."""

    ids: np.ndarray  # int64
    weights: np.ndarray  # float32, loss weight of predicting this token
    positions: np.ndarray  # int64 rope positions
    answer: np.ndarray  # int32, index into `answers` of the reply this token belongs to, else -1
    answers: list[tuple[str, float]]  # family and depth of each reply


class Mixture:
    """Draws the batches of a stage; batch i of rank r is always the same, so a resumed run goes on where it stopped."""

    def __init__(self, run: Path, *, max_positions: int, seed: int) -> None:
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(run / "tokenizer")
        self.tokens = np.load(run / "train.npy", mmap_mode="r")
        texts = json.loads((run / "text.json").read_text(encoding="utf-8"))
        self.haystacks = [Haystack.from_text(text[:100_000]) for text in texts[:300] if len(text) > 2_000]
        self.vocabulary = sorted(
            {word for text in texts[:300] for word in re.findall(r"\b[a-z]{3,12}\b", text[:30_000])}
        )
        self.max_positions, self.seed = max_positions, seed

    def batch(self, stage: Stage, step: int, rank: int, step_tokens: int) -> Batch:
        """The rows of one process in one step; their length is the same for all processes."""
        lengths, shares = zip(*stage.rows, strict=True)
        length = random.Random(f"{self.seed}/{stage.name}/{step}").choices(lengths, shares)[0]
        rng = random.Random(f"{self.seed}/{stage.name}/{step}/{rank}")
        rows = max(1, step_tokens // length)
        batch = Batch(
            ids=np.zeros((rows, length), np.int64),
            weights=np.zeros((rows, length), np.float32),
            positions=np.zeros((rows, length), np.int64),
            answer=np.full((rows, length), -1, np.int32),
            answers=[],
        )
        for row in range(rows):
            self._fill_row(batch, row, stage, rng)
        return batch

    def _fill_row(self, batch: Batch, row: int, stage: Stage, rng: random.Random) -> None:
        length = batch.ids.shape[1]
        kind = rng.random()
        if kind < stage.copying:
            batch.ids[row], batch.weights[row] = copying_row(rng, length, len(self.tokenizer))
        elif kind < stage.copying + stage.text:
            batch.ids[row] = self._text(rng, length)
            batch.weights[row] = stage.text_weight
        else:
            self._fill_with_conversations(batch, row, stage, rng)
        stretched = rng.random() < stage.stretch
        batch.positions[row] = stretched_positions(rng, length, self.max_positions if stretched else length)

    def _fill_with_conversations(self, batch: Batch, row: int, stage: Stage, rng: random.Random) -> None:
        length, start = batch.ids.shape[1], 0
        while length - start > 100:
            room = length - start
            wanted = room if rng.random() < 0.8 or room < 400 else rng.randint(200, room)
            conversation = draw_conversation(
                rng, wanted - 8, rng.choice(self.haystacks), self.tokenizer, self.vocabulary, stage.keys
            )
            start = self._write(batch, row, start, conversation, stage, rng)
        if start < length:
            batch.ids[row, start:] = self._text(rng, length - start)
            batch.weights[row, start:] = stage.text_weight

    def _write(self, batch: Batch, row: int, start: int, said: Conversation, stage: Stage, rng: random.Random) -> int:
        """Put one conversation at `start` of a row, cut off at the end of the row; returns where it ends."""
        ids, weights, spans = tokenise_conversation(said, self.tokenizer, stage.text_weight, rng)
        end = min(batch.ids.shape[1], start + len(ids))
        batch.ids[row, start:end] = ids[: end - start]
        batch.weights[row, start:end] = weights[: end - start]
        for turn, (begin, stop) in zip(said.turns, spans, strict=True):
            if start + stop <= end:
                batch.answer[row, start + begin : start + stop] = len(batch.answers)
                batch.answers.append((turn.family, turn.depth))
        return end

    def _text(self, rng: random.Random, length: int) -> np.ndarray:
        start = rng.randrange(len(self.tokens) - length)
        return self.tokens[start : start + length].astype(np.int64)


def tokenise_conversation(
    said: Conversation, tokenizer: PreTrainedTokenizerBase, text_weight: float, rng: random.Random
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """Token ids and loss weights of the chat-formatted conversation, and the token span of each reply with its end."""
    prompts = [f"{said.context}\n\n{said.turns[0].question}", *(turn.question for turn in said.turns[1:])]
    texts = [text for prompt, turn in zip(prompts, said.turns, strict=True) for text in (prompt, turn.reply)]
    coded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    question = len(tokenizer(said.turns[0].question, add_special_tokens=False)["input_ids"])
    user, assistant, end = tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>", "<|end|>"])
    ids, weights, spans = [tokenizer.bos_token_id], [0.0], []
    prose = text_weight / _PROSE_SAMPLE if said.is_text else 0.0
    for i in range(0, len(coded), 2):
        asked, answered = coded[i], coded[i + 1]
        context = max(0, len(asked) - question) if i == 0 else 0
        ids += [user, *asked, end, assistant]
        weights += [0.0, *(prose if rng.random() < _PROSE_SAMPLE else 0.0 for _ in range(context))]
        weights += [QUESTION] * (len(asked) - context) + [QUESTION, QUESTION]
        spans.append((len(ids), len(ids) + len(answered) + 1))
        ids += [*answered, end]
        weights += [ANSWER] * (len(answered) + 1)
    return np.array(ids), np.array(weights, np.float32), spans


def copying_row(rng: random.Random, length: int, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """A segment of distinct random tokens, repeated to the end of the row; only the repeats weigh."""
    segment = np.array(rng.sample(range(vocab), rng.randint(8, max(9, min(64, length // 2)))))
    weights = np.zeros(length, np.float32)
    weights[len(segment) : 128] = 1.0
    return np.resize(segment, length), weights


def stretched_positions(rng: random.Random, length: int, limit: int) -> np.ndarray:
    """Increasing rope positions of one row with gaps at a few random places, the last one below `limit`.

    The idea is PoSE's, arXiv:2309.10400: large distances are seen on short rows.
    """
    positions = np.arange(length)
    if limit <= length:
        return positions
    extra = int((limit - length) * rng.random() ** 2)
    cuts = sorted(rng.sample(range(1, length), rng.randint(1, 6)))
    borders = [*sorted(rng.randint(0, extra) for _ in cuts[1:]), extra]
    for cut, gap in zip(cuts, np.diff([0, *borders]), strict=True):
        positions[cut:] += gap
    return positions
