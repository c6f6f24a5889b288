"""``sdp-facade icd``: check the interface, show it, and write the files that are derived from it or list stale ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from facade.kernel.codec.json_schema import compile_message
from facade.kernel.console import ERR, OUT, table, wide
from facade.kernel.errors import ConfigError, IcdError
from facade.kernel.icd.checks import IcdFinding
from facade.kernel.icd.load import inspect, load
from facade.kernel.icd.model import DeviceClass, Icd
from facade.kernel.icd.units import unit_of
from facade.kernel.resources import resource
from facade.sdp.words import (
    effect_in_words,
    limits_in_words,
    result_in_words,
    sampling_in_words,
    source_in_words,
    staleness_in_words,
    type_in_words,
)
from facade.tools.exports.files import EXPORTS, derive, stale, write

OutputFolder = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder with icd/, messages/ and commands/.", show_default="the shipped schemas"),
]


def check_command(folder: OutputFolder = None) -> None:
    """Check that the interface is complete and fits together.

    Example: sdp-facade icd check
    """
    icd, findings = inspect(folder, thorough=True)
    if icd is not None and not findings:
        findings = _uncompilable(icd)
    if icd is None or findings:
        for finding in findings:
            ERR.print(str(finding), markup=False)
        ERR.print(f"{len(findings)} finding(s)")
        raise typer.Exit(1)
    _print_summary(icd)


def show_command(
    name: Annotated[str, typer.Argument(metavar="CLASS", help="Device class, such as SdpMaster.")],
    folder: OutputFolder = None,
) -> None:
    """Show the attributes and commands of one device class.

    Example: sdp-facade icd show SdpIngestNode
    """
    try:
        icd = load(folder)
    except IcdError as error:
        ERR.print(str(error), markup=False)
        raise typer.Exit(1) from None
    known = {one.casefold(): one for one in icd.classes}
    if name.casefold() not in known:
        ERR.print(f"expected one of {', '.join(icd.classes)}, got {name!r}", markup=False)
        raise typer.Exit(2)
    device_class = icd.classes[known[name.casefold()]]
    wide().print(_attribute_table(icd, device_class))
    if device_class.commands:
        wide().print(_command_table(icd, device_class))
    if device_class.queries:
        wide().print(_query_table(device_class))


def export_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help=f"Any of {', '.join(EXPORTS)}. Default: all.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 if a file is stale.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            help="Folder that is to have the files, with those of all flows that are installed. "
            "Default: the top of the sources, where only what is shipped belongs.",
            show_default=False,
        ),
    ] = None,
    folder: OutputFolder = None,
) -> None:
    """Derive all that follows from the ICD: registration, and descriptions for programs and people.

    Examples: sdp-facade icd export, sdp-facade icd export --check, sdp-facade icd export tango-db --to /tmp/sdp
    """
    if unknown := [name for name in names or () if name not in EXPORTS]:
        raise ConfigError(f"expected any of {', '.join(EXPORTS)}, got {', '.join(unknown)}")
    files = derive(load(folder if to or folder else resource("schemas")), tuple(names or ()))
    to = to or Path()
    if not check:
        for path in write(files, to):
            OUT.print(f"{'written' if path in files else 'removed'}: {to / path}", markup=False)
        OUT.print(f"{len(files)} files are as the ICD says")
        return
    if differing := stale(files, to):
        for path in differing:
            ERR.print(f"stale: {to / path}", markup=False)
        ERR.print(f"{len(differing)} of {len(files)} files are not as the ICD says; run: sdp-facade icd export")
        raise typer.Exit(1)
    OUT.print(f"{len(files)} derived files are as the ICD says")


def _attribute_table(icd: Icd, device_class: DeviceClass) -> Table:
    headings = ("name", "type", "unit", "label", "source", "sampling", "stale after", "limits")
    rows = (
        (
            one.name,
            type_in_words(one),
            unit_of(icd, one),
            one.label,
            source_in_words(one),
            sampling_in_words(one.sampling or device_class.sampling),
            staleness_in_words(device_class, one),
            limits_in_words(one.limits),
        )
        for one in device_class.attributes
    )
    title = f"{device_class.name}: {device_class.device}"
    return table(headings, rows, whole=headings[:3], title=title, caption=device_class.description)


def _command_table(icd: Icd, device_class: DeviceClass) -> Table:
    headings = ("name", "argument", "allowed in", "leads to", "begins within", "deadline", "ceiling", "repeatable")
    rows = (
        (
            f"{one.name} (overtakes)" if one.overtakes else one.name,
            f"{one.argument} {', '.join(icd.arguments[one.argument])}" if one.argument else "none",
            "; ".join(filter(None, (" ".join(one.state), " ".join(one.obs_state)))),
            effect_in_words(one),
            *(f"{time:g} s" for time in (one.start_within, one.deadline, one.ceiling)),
            "yes" if one.repeatable else "no",
        )
        for one in device_class.commands
    )
    return table(headings, rows, whole=("name",), title=f"{device_class.name}: commands, executed by controllers")


def _query_table(device_class: DeviceClass) -> Table:
    rows = (
        (
            one.name,
            ": ".join(filter(None, (one.argument, one.argument_description))),
            f"{result_in_words(one)}: {one.result_description}",
            one.description,
        )
        for one in device_class.queries
    )
    title = f"{device_class.name}: commands that the device answers itself"
    return table(("name", "argument", "result", "description"), rows, whole=("name",), title=title)


def _uncompilable(icd: Icd) -> list[IcdFinding]:
    """Return the messages that have no possible decoder."""
    findings = []
    for name, schema in icd.messages.items():
        try:
            compile_message(name, schema)
        except IcdError as error:
            findings.append(IcdFinding("", "", str(error)))
    return findings


def _print_summary(icd: Icd) -> None:
    attributes = {name: len(one.attributes) for name, one in icd.classes.items()}
    commands = {name: len(one.commands) + len(one.queries) for name, one in icd.classes.items()}
    arguments = [f"{family} {' '.join(versions)}" for family, versions in icd.arguments.items()]
    rows: tuple[tuple[str, int, Iterable[object]], ...] = (
        ("classes", len(icd.classes), icd.classes),
        ("attributes", sum(attributes.values()), attributes.values()),
        ("commands", sum(commands.values()), commands.values()),
        ("arguments", sum(map(len, icd.arguments.values())), arguments),
        ("topics", len(icd.topics), icd.topics),
        ("messages", len(icd.messages), icd.messages),
    )
    shown = ((what, str(count), ", ".join(map(str, each))) for what, count, each in rows)
    wide().print(table(("", "", ""), shown, title=f"ICD {icd.version}: no findings", show_header=False))
