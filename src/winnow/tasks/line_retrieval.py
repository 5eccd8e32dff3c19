"""Line retrieval on the data of LongChat: many lines with a register content each, read from the user's directory."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import fill_with_records
from winnow.tasks.rows import existing_directory, read_rows

INTRODUCTION = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
    "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its corresponding "
    "<REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding <REGISTER_CONTENT> of "
    "a certain line index. Now the record start:\n\n"
)
_LINE = re.compile(r"^line (\S+): REGISTER_CONTENT is <(\d+)>$", re.MULTILINE)

SAMPLE = 64  # lines tokenised to guess how long one is

Lines = tuple[tuple[str, str], ...]  # line index and register content, in order


def line(index: str, content: str) -> str:
    """One line of the record, and the answer in the wanted form."""
    return f"line {index}: REGISTER_CONTENT is <{content}>"


def question(index: str) -> str:
    """The question about one line."""
    return (
        f"Now the record is over. Tell me what is the <REGISTER_CONTENT> in line {index}? "
        "I need the number. Repeat the line."
    )


@cache
def load_lines(directory: str | Path) -> tuple[Lines, ...]:
    """The lines of each record of `lines_*.jsonl.gz` in `directory` (field prompt), the longest records first.

    Raises:
        InputError: no directory, no such file in it, a missing field, or a prompt without lines; names file and line.
    """
    folder = existing_directory(directory)
    records: list[Lines] = []
    for path in sorted(folder.glob("lines_*.jsonl.gz")):
        for row in read_rows(path):
            lines = tuple(_LINE.findall(str(row["prompt"])))
            if len(lines) < 2:
                raise row.error("'prompt' holds no lines like 'line old-cat: REGISTER_CONTENT is <1>'")
            records.append(lines)
    if not records:
        raise InputError(f"{folder} holds no record in a file lines_*.jsonl.gz")
    return tuple(sorted(records, key=len, reverse=True))


@dataclass(frozen=True)
class LineRetrieval(DrawnTask):
    """As many lines of a record as fit, one of them moved to the wanted depth and asked for.

    Lines of further records follow where one is not enough; an index that was there before is left out.
    """

    data: str | Path
    name: str = "line_retrieval"

    def make(self, draw: Draw) -> Example:
        lines = self._lines(draw)
        names = draw.rng.sample(sorted(lines), len(lines))
        target, *others = [(name, lines[name]) for name in names]
        place, sample = draw.place(), [line(*pair) for pair in others[:SAMPLE]]
        limit = draw.allow(line(*target))

        def build(count: int) -> Example:
            if count > len(lines):
                raise InputError(
                    f"{draw.tokens} tokens need {count} lines, but {self.data} has {len(lines)}; use fewer"
                )
            index = round(place * (count - 1))
            before = "".join(line(*pair) + "\n" for pair in others[:index])
            after = "".join("\n" + line(*pair) for pair in others[index : count - 1])
            context = before + line(*target) + after
            depths = (min(1.0, len(before) / max(1, len(context) - len(line(*target)))),)
            return Example(INTRODUCTION + context, question(target[0]), line(*target), (target[1],), depths, limit)

        return fill_with_records(build, draw, "\n".join(sample), len(sample))

    def _lines(self, draw: Draw) -> dict[str, str]:
        """Those of a record, and of further ones where it is short."""
        records = load_lines(self.data)
        lines: dict[str, str] = {}
        for record in [draw.rng.randrange(len(records)), *draw.rng.sample(range(len(records)), len(records))]:
            lines = dict(records[record]) | lines
            if 8 * len(lines) > draw.tokens:  # no tokenizer writes a line in fewer than 8 tokens
                break
        return lines
