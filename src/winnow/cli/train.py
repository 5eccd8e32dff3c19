"""`winnow train`: make a model, an adapter or retaining heads that a plan needs."""

import typer

from winnow.cli.train_locret import locret
from winnow.cli.train_speed import speed

app = typer.Typer(no_args_is_help=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def train(context: typer.Context) -> None:
    """Make a model, an adapter or retaining heads that a plan needs."""
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command()(speed)
app.command()(locret)
