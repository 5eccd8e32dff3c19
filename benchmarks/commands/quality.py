"""`quality`: settings chosen on validation, arms compared on test, by docs/protocol.md."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from winnow.cli.command import Command
from winnow.cli.main import new_app
from winnow.cli.options import (
    AdapterOptions,
    AtLeast1,
    AtLeast2,
    OutOptions,
    PlotOptions,
    Seed,
)

app = new_app("quality", "Choose settings on validation, and compare what was chosen on test (docs/protocol.md).")
Files = Annotated[tuple[Path, ...], Parameter(help="Files of `quality run`, of one split and model.")]
AtLeast0 = Annotated[int, Parameter(validator=Number(gte=0))]


@dataclass(frozen=True, kw_only=True)
class Run(AdapterOptions, PlotOptions, Command, runs="benchmarks.quality.command:run"):
    """Ask questions and follow texts under all arms, full attention first; what is recorded is not measured again."""

    records: Path = field(kw_only=False)
    """A file of JSON lines: new, or one that the same command has begun."""
    data: Path
    """The directory of data sets and texts (docs/data.md)."""
    split: Literal["validation", "test"]
    """validation: to choose settings; test: to report what was chosen."""
    plan: Annotated[tuple[str, ...], Parameter(alias="-p")] = ()
    """An arm: a plan, in which {1/8} stands for an eighth of the prompt's tokens; repeatable."""
    plans: Path | None = None
    """Arms as `quality choose` writes them."""
    grid: Path | None = None
    """Settings of every policy: benchmarks/quality/grid.toml, or a file like it."""
    cost: tuple[str, ...] = ()
    """Of the grid, this cost alone: rows, bytes, units, pairs, composed; repeatable."""
    policy: tuple[str, ...] = ()
    """Of the grid, this policy alone; repeatable."""
    task: Annotated[tuple[str, ...], Parameter(alias="-t")] = ()
    """Repeatable. Default: RULER's and those of data sets (docs/protocol.md)."""
    length: Annotated[tuple[AtLeast1, ...], Parameter(alias="-l")] = (4096,)
    """Prompt tokens, 512 to 8192; repeatable."""
    questions: Annotated[AtLeast0, Parameter(alias="-n")] = 20
    """Of each task and length."""
    windows: Annotated[AtLeast0, Parameter(alias="-w")] = 2
    """Of each of the six domains of text, and length."""
    fed: AtLeast2 = 64
    """Tokens of a window that follow its prompt."""
    seed: Seed = 0
    """Of the questions and windows; the splits draw differently."""
    uncommitted: bool = False
    """Measure code that no commit has; the record says so."""


@dataclass(frozen=True, kw_only=True)
class Table(PlotOptions, Command, runs="benchmarks.quality.command:table"):
    """Show records again, those of several files together."""

    records: Files = field(kw_only=False)
    against: str | None = None
    """The arm from which points and differences of KL are told, such as a control. Default: full attention, from which
    KL itself and costs always are."""
    but_for: tuple[Path, ...] = ()
    """Files of records, any of whose questions is left out, so that what is left is a first look; repeatable."""


@dataclass(frozen=True, kw_only=True)
class Choose(OutOptions, Command, runs="benchmarks.quality.command:choose_settings"):
    """The best setting of each policy at each cost, from records of validation; --out writes what --plans takes."""

    records: Files = field(kw_only=False)
    grid: Path | None = None
    """The settings that were tried. Default: benchmarks/quality/grid.toml."""


app.command(Run, name="run")
app.command(Table, name="table")
app.command(Choose, name="choose")
