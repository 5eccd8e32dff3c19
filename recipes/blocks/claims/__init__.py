"""The tables of docs/fidelity.md: what a paper claims, what was measured here, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterable

from recipes.blocks.tables import Columns, key, table

Claim = tuple[str, str, str]
COLUMNS: Columns = {name: key(name) for name in ("the paper", "here", "holds?")}


def claims(rows: Iterable[Claim]) -> str:
    """A row per claim."""
    return table(COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in rows))
