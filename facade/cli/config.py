"""`sdp-facade config`: what the settings are here, where they come from, and what is wrong with them."""

from collections.abc import Iterator, Mapping

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from facade.bus.kafka.properties import refusal
from facade.config import load_settings
from facade.settings_explained import (
    HIDDEN,
    Explained,
    explain_settings,
    is_secret,
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
        wrong = list(_refused(load_settings().kafka))
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


def _refused(properties: Mapping[str, str]) -> Iterator[str]:
    """Say what the Kafka client does not take: single properties, else the whole of them."""
    whole = refusal(properties)
    if not whole:
        return
    # One that needs another one is refused by itself as well; only where its own name is the reason, it is the reason.
    alone = {name: refusal({name: value}) for name, value in properties.items()}
    named = {name: text for name, text in alone.items() if f'"{name}"' in text}
    for name, text in (named or {"all together": whole}).items():
        yield f"kafka: {name}: expected what librdkafka takes, got: {_plain(text, properties)}"


def _plain(text: str, properties: Mapping[str, str]) -> str:
    """Take what may be a secret out of what the client says."""
    for name, value in properties.items():
        if is_secret(name) and value:
            text = text.replace(value, HIDDEN)
    return text
