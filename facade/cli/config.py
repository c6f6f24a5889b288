"""`sdp-facade config`: what the settings are here, where they come from, and what is wrong with them."""

import typer
from rich.markup import escape

from facade.bus.kafka.properties import refusals
from facade.console import ERR, table, wide
from facade.settings_explained import (
    explain_settings,
    kafka_properties,
    misspelt,
    process_variables,
    shadows,
    template,
)


def check() -> None:
    """Show each setting, where it comes from and what it means, and all that is wrong.

    Secrets are not shown. The exit code is 1 if a setting is wrong; then nothing would start with it.

    Example: SDP_FACADE_CONFIG=site.toml sdp-facade config check
    """
    shown, wrong = explain_settings()
    for title, rows in (("Settings of the deployment", shown), ("Variables of each process", process_variables())):
        cells = ((one.name, one.value, one.origin, one.meaning) for one in rows)
        headings = ("name", "value", "from", "meaning")
        wide().print(table(headings, cells, whole=("name",), title=title, title_justify="left"))
    for text in (*misspelt(), *shadows()):
        ERR.print(f"[yellow]warning:[/yellow] {escape(text)}")
    wrong += refusals(kafka_properties())
    for text in wrong:
        ERR.print(f"[bold red]wrong:[/bold red] {escape(text)}")
    if wrong:
        raise typer.Exit(1)


def print_template() -> None:
    """Print a settings file with all settings, their meaning and their defaults, commented out.

    Example: sdp-facade config template > site.toml
    """
    print(template(), end="")
