"""Key-value retrieval on the data of Lost in the Middle: UUID keys and values, read from the user's directory."""

import random
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import fill_with_records
from winnow.tasks.kv import ask_pair, json_object, pair
from winnow.tasks.rows import existing_directory, read_rows

SAMPLE = 20  # pairs tokenised to guess how long one is

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
        for row in read_rows(path):
            key, value, pairs = row["key"], row["value"], row["ordered_kv_records"]
            if not isinstance(pairs, list) or any(not isinstance(p, list) or len(p) != 2 for p in pairs):
                raise row.error("'ordered_kv_records' must be a list of [key, value] pairs")
            others = tuple((str(k), str(v)) for k, v in pairs if k != key)
            records.append(((str(key), str(value)), others))
    if not records:
        raise InputError(f"{folder} holds no record in a file kv_*.jsonl.gz")
    return tuple(records)


@dataclass(frozen=True)
class KvRetrieval(DrawnTask):
    """The pairs of one record, the asked one moved to the wanted depth.

    As many pairs as fit are taken; past the size of the record they are fresh random UUIDs, made the same way.
    """

    data: str | Path
    name: str = "kv_retrieval"

    def make(self, draw: Draw) -> Example:
        target, others = draw.rng.choice(load_records(self.data))
        place, seed = draw.place(), draw.rng.getrandbits(64)
        limit, sample = draw.allow(pair(*target)), [target, *others][:SAMPLE]

        def build(count: int) -> Example:
            fresh = random.Random(seed)
            more = [(_uuid(fresh), _uuid(fresh)) for _ in range(count - 1 - len(others))]
            return ask_pair([*others, *more], target, count, place, limit)

        return fill_with_records(build, draw, json_object(sample), len(sample))


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
