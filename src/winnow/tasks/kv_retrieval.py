"""Key-value retrieval on the data of Lost in the Middle: UUID keys and values, read from the user's directory."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError
from winnow.tasks.example import Example, reply_tokens, share_found
from winnow.tasks.fill import fill_with_records
from winnow.tasks.haystack import existing_directory, field, read_records
from winnow.tasks.kv import ask_pair, json_object, pair

Record = tuple[tuple[str, str], tuple[tuple[str, str], ...]]  # the pair asked for, the other pairs in their order


@cache
def load_records(directory: str | Path) -> tuple[Record, ...]:
    """The records of every `kv_*.jsonl.gz` in `directory`: fields ordered_kv_records [[key, value], ...], key, value.

    Raises:
        InputError: no directory, no such file in it, or a field missing or of another shape; names file and line.
    """
    folder = existing_directory(directory)
    records: list[Record] = []
    for path in sorted(folder.glob("kv_*.jsonl.gz")):
        for line, record in read_records(path):
            key, value = field(record, "key", path, line), field(record, "value", path, line)
            pairs = field(record, "ordered_kv_records", path, line)
            if not isinstance(pairs, list) or any(not isinstance(p, list) or len(p) != 2 for p in pairs):
                raise InputError(f"{path}, line {line}: 'ordered_kv_records' must be a list of [key, value] pairs")
            others = tuple((str(k), str(v)) for k, v in pairs if k != key)
            records.append(((str(key), str(value)), others))
    if not records:
        raise InputError(f"{folder} holds no record in a file kv_*.jsonl.gz")
    return tuple(records)


@dataclass(frozen=True)
class KvRetrieval:
    """The pairs of one record, the asked one moved to the wanted depth.

    As many pairs as fit are taken; past the size of the record they are fresh random UUIDs, made the same way.
    """

    data: str | Path
    name: str = "kv_retrieval"

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`."""
        target, others = rng.choice(load_records(self.data))
        place = rng.random() if depth is None else depth
        seed = rng.getrandbits(64)
        sample = json_object([target, *others][:20])
        per_record = len(tokenizer(sample, add_special_tokens=False)["input_ids"]) / min(20, 1 + len(others))
        limit = reply_tokens(pair(*target), tokenizer)

        def build(count: int) -> Example:
            fresh = random.Random(seed)
            more = [(_uuid(fresh), _uuid(fresh)) for _ in range(count - 1 - len(others))]
            return ask_pair([*others, *more], target, count, place, limit)

        return fill_with_records(build, per_record=per_record, tokens=tokens, tokenizer=tokenizer)

    def score(self, example: Example, text: str) -> float:
        """1 if the value is found, else 0."""
        return share_found(example, text)


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
