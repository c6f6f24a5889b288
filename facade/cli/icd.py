"""``sdp-facade icd``: check the interface and show it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from facade.codec.json_schema import compile_message
from facade.console import Console
from facade.errors import IcdError
from facade.icd.finding import Finding
from facade.icd.load import inspect, load
from facade.icd.model import DeviceClass, Icd
from facade.icd.units import unit_of
from facade.icd.words import (
    effect_in_words,
    limits_in_words,
    result_in_words,
    sampling_in_words,
    source_in_words,
    staleness_in_words,
    type_in_words,
)

Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder with icd/, messages/ and commands/.", show_default="the shipped schemas"),
]

_PIPE_WIDTH = 180


def check_command(folder: Folder = None) -> None:
    """Check that the interface is complete and fits together.

    Example: sdp-facade icd check
    """
    icd, findings = inspect(folder, thorough=True)
    if icd is not None and not findings:
        findings = _uncompilable(icd)
    if icd is None or findings:
        errors = Console(stderr=True, soft_wrap=True, highlight=False)
        for finding in findings:
            errors.print(str(finding), markup=False)
        errors.print(f"{len(findings)} finding(s)")
        raise typer.Exit(1)
    _print_summary(icd)


def show_command(
    name: Annotated[str, typer.Argument(metavar="CLASS", help="Device class, such as SdpMaster.")],
    folder: Folder = None,
) -> None:
    """Show the attributes and commands of one device class.

    Example: sdp-facade icd show SdpIngestNode
    """
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        icd = load(folder)
    except IcdError as error:
        errors.print(str(error), markup=False)
        raise typer.Exit(1) from None
    known = {one.casefold(): one for one in icd.classes}
    if name.casefold() not in known:
        errors.print(f"expected one of {', '.join(icd.classes)}, got {name!r}", markup=False)
        raise typer.Exit(2)
    device_class = icd.classes[known[name.casefold()]]
    _console().print(_attribute_table(icd, device_class))
    if device_class.commands:
        _console().print(_command_table(icd, device_class))
    if device_class.queries:
        _console().print(_query_table(device_class))


def _attribute_table(icd: Icd, device_class: DeviceClass) -> Table:
    table = Table(title=f"{device_class.name}: {device_class.device}", caption=device_class.description)
    for heading in ("name", "type", "unit", "label", "source", "sampling", "stale after", "limits"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("name", "type", "unit"))
    for one in device_class.attributes:
        table.add_row(
            one.name,
            type_in_words(one),
            unit_of(icd, one),
            one.label,
            source_in_words(one),
            sampling_in_words(one.sampling or device_class.sampling),
            staleness_in_words(device_class, one),
            limits_in_words(one.limits),
        )
    return table


def _command_table(icd: Icd, device_class: DeviceClass) -> Table:
    table = Table(title=f"{device_class.name}: commands, executed by controllers")
    headings = ("name", "argument", "allowed in", "leads to", "begins within", "deadline", "ceiling", "repeatable")
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == "name")
    for one in device_class.commands:
        table.add_row(
            f"{one.name} (overtakes)" if one.overtakes else one.name,
            f"{one.argument} {', '.join(icd.arguments[one.argument])}" if one.argument else "none",
            "; ".join(filter(None, (" ".join(one.state), " ".join(one.obs_state)))),
            effect_in_words(one),
            f"{one.start_within:g} s",
            f"{one.deadline:g} s",
            f"{one.ceiling:g} s",
            "yes" if one.repeatable else "no",
        )
    return table


def _query_table(device_class: DeviceClass) -> Table:
    table = Table(title=f"{device_class.name}: commands that the device answers itself")
    for heading in ("name", "argument", "result", "description"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "name")
    for one in device_class.queries:
        table.add_row(
            one.name,
            ": ".join(filter(None, (one.argument, one.argument_description))),
            f"{result_in_words(one)}: {one.result_description}",
            one.description,
        )
    return table


def _uncompilable(icd: Icd) -> list[Finding]:
    """Find the messages that no decoder can be made for."""
    findings = []
    for name, schema in icd.messages.items():
        try:
            compile_message(name, schema)
        except IcdError as error:
            findings.append(Finding("", "", str(error)))
    return findings


def _print_summary(icd: Icd) -> None:
    table = Table(title=f"ICD {icd.version}: no findings", show_header=False)
    table.add_row("classes", str(len(icd.classes)), ", ".join(icd.classes))
    attributes = {name: len(one.attributes) for name, one in icd.classes.items()}
    table.add_row("attributes", str(sum(attributes.values())), ", ".join(map(str, attributes.values())))
    commands = {name: len(one.commands) + len(one.queries) for name, one in icd.classes.items()}
    table.add_row("commands", str(sum(commands.values())), ", ".join(map(str, commands.values())))
    arguments = [f"{family} {' '.join(versions)}" for family, versions in icd.arguments.items()]
    table.add_row("arguments", str(sum(map(len, icd.arguments.values()))), ", ".join(arguments))
    table.add_row("topics", str(len(icd.topics)), ", ".join(icd.topics))
    table.add_row("messages", str(len(icd.messages)), ", ".join(icd.messages))
    _console().print(table)


def _console() -> Console:
    """Make the console; what goes into a file or a pipe is not folded to 80 columns."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
