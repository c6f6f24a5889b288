"""`sdp-facade config`: what the settings are here, where they come from, and what is wrong with them."""

import typer
from rich.markup import escape
from rich.table import Table

from facade.bus.kafka.properties import refusals
from facade.config import load_settings
from facade.console import Console
from facade.settings_explained import (
    Explained,
    explain_settings,
    misspelt,
    process_variables,
    template,
)

_err = Console(stderr=True, highlight=False, soft_wrap=True)
_PIPE_WIDTH = 160


def check() -> None:
    """Show each setting, where it comes from and what it means, and all that is wrong.

    Secrets are not shown. The exit code is 1 if a setting is wrong; then nothing would start with it.

    Example: SDP_FACADE_CONFIG=site.toml sdp-facade config check
    """
    shown, wrong = explain_settings()
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=_PIPE_WIDTH)
    console.print(_table("Settings of the deployment", shown))
    console.print(_table("Variables of each process", process_variables()))
    for text in misspelt():
        _err.print(f"[yellow]warning:[/yellow] {escape(text)}")
    if not wrong:
        wrong = list(refusals(load_settings().kafka))
    for text in wrong:
        _err.print(f"[bold red]wrong:[/bold red] {escape(text)}")
    if wrong:
        raise typer.Exit(1)


def print_template() -> None:
    """Print a settings file with all settings, their meaning and their defaults, commented out.

    Example: sdp-facade config template > site.toml
    """
    print(template(), end="")


def _table(title: str, rows: list[Explained]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("name", "value", "from", "meaning"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "name")
    for row in rows:
        table.add_row(*(escape(text) for text in (row.name, row.value, row.origin, row.meaning)))
    return table
