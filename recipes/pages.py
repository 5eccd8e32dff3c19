"""Pages of results: prose that is written by hand, with tables between two marks that recipes fill."""

from __future__ import annotations

from pathlib import Path

BEGIN, END = "<!-- tables: made by a recipe -->", "<!-- /tables -->"


def fill(page: Path, title: str, tables: str) -> None:
    """Put `tables` between the marks of `page`, and leave what stands around them; a new page gets `title`.

    Raises ValueError where the page has no marks.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else f"# {title}\n\n{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {BEGIN!r} and {END!r}; put them where the tables belong")
    page.write_text(f"{before}{BEGIN}\n\n{tables.strip()}\n\n{END}{after}", encoding="utf-8")
