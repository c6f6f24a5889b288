"""The command line as its parser has it."""

from collections.abc import Iterable, Iterator
from typing import Any

import typer

from facade.kernel.cli.app import app


def descend(words: Iterable[str]) -> tuple[Any, list[str]]:
    """Return the command that some words lead to, imported, and the words that are left."""
    command, rest = typer.main.get_command(app), list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = _imported(command.commands[rest.pop(0)])
    return command, rest


def walk(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return each command that is no group with its words, imported."""
    command = _imported(typer.main.get_command(app) if command is None else command)
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from walk(child, (*path, name))


def _imported(command: Any) -> Any:
    return command.load() if hasattr(command, "load") else command
