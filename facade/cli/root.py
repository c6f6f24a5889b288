"""The command ``sdp-facade`` itself; see `facade.cli.parts` for its sub-commands."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import facade
from facade.errors import FacadeError

app = typer.Typer(
    name="sdp-facade",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_out = Console()
_err = Console(stderr=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tango facade of the SKA Science Data Processor's Kafka bus."""


@app.command()
def version() -> None:
    """Print the version.

    Example: sdp-facade version
    """
    _out.print(facade.__version__)


def run(application: typer.Typer) -> None:
    """Run an application; a failure that we foresaw is one line, not a traceback."""
    try:
        application()
    except FacadeError as error:
        _err.print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
