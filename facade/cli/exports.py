"""``sdp-facade icd export``: write the files that are derived from the interface, or list stale ones."""

from pathlib import Path
from typing import Annotated

import typer

from facade.cli.icd import OutputFolder
from facade.console import ERR, OUT
from facade.errors import ConfigError
from facade.exports.files import EXPORTS, derive, stale, write
from facade.icd.load import load
from facade.resources import resource


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
