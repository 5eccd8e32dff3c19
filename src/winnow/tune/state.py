"""What has been measured, in memory and, line by line, in a file from which a later run goes on."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from winnow.errors import InputError, writing
from winnow.evaluation.evaluate import Case
from winnow.models.files import replace_text
from winnow.runtime.adapters import fingerprint
from winnow.runtime.llm import LLM
from winnow.tune.measure import Measurement
from winnow.tune.prompts import digest

FORMAT = 2


class Ledger:
    """Measurements by plan and prompt.

    path: a file of JSON Lines, or None. Its first line is `about`, every other one a measurement, written as soon as
    it is made; limits are not part of it, since no measurement depends on them. A file that holds measurements of the
    same `about` is read, and added to.

    Raises InputError naming what differs where the file is about something else, or the line that cannot be read.
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self._path = path
        self._known: dict[tuple[str, int], Measurement] = {}
        if path is None:
            return
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path}: {error}; name another file with --state") from error
        whole = text[: text.rfind("\n") + 1]  # its writer may have been stopped in the middle of a line
        if text and not whole and not _line(about).startswith(text):
            raise InputError(f"{path} is no state of this command; name another file with --state")
        self._read(path, whole.split("\n")[:-1], about)
        if whole != text or not whole:
            with writing(path):
                replace_text(path, whole or _line(about))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, plan: str, prompt: int) -> Measurement | None:
        return self._known.get((plan, prompt))

    def of(self, plan: str, prompts: Sequence[int]) -> list[Measurement]:
        """What is known of a plan on some prompts."""
        return [self._known[plan, prompt] for prompt in prompts if (plan, prompt) in self._known]

    def add(self, measurement: Measurement) -> None:
        new = (measurement.plan, measurement.prompt) not in self._known
        self._known[measurement.plan, measurement.prompt] = measurement
        if new and self._path is not None:
            with writing(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(_line(asdict(measurement)))

    def _read(self, path: Path, lines: list[str], about: dict[str, Any]) -> None:
        names = {field.name for field in fields(Measurement)}
        for number, line in enumerate(lines, start=1):
            try:
                row: Any = json.loads(line)
            except json.JSONDecodeError:
                row = None
            if number == 1:
                _same(path, row, about)
            elif isinstance(row, dict) and row.keys() == names:
                self._known[row["plan"], row["prompt"]] = Measurement(**row)
            else:
                raise InputError(f"{path}, line {number} is no measurement; remove the line, or name another file")


def about(llm: LLM, model: str, cases: Sequence[Case]) -> dict[str, Any]:
    """What measurements depend on, besides plan and prompt. model: the name it was asked for by."""
    return {
        "format": FORMAT,
        "model": model,
        "weights": fingerprint(llm.model),
        "device": str(llm.device),
        "dtype": str(llm.dtype).removeprefix("torch."),
        "prefill_chunk": llm.prefill_chunk,
        "prompts": digest(cases),
    }


def _same(path: Path, found: Any, wanted: dict[str, Any]) -> None:
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path} is not a state of this version of tune; name another file")
    for name, value in wanted.items():
        if found.get(name) != value:
            what = f"other {name}" if name == "prompts" else f"{name}={found.get(name)}, not {value}"
            raise InputError(f"{path} was written for {what}; name another file, or remove it to begin anew")


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
