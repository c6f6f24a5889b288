"""The files of docker/ as data, and what a command line or an environment in them must be."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml

from facade.kernel.cli.app import app
from facade.kernel.icd.load import load
from facade.kernel.names import VARIABLES

SEARCHED = os.pathsep.join((sys.exec_prefix + "/bin", os.environ["PATH"]))
"""Where programs are: the environment of the tests need not be on the path."""
ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
ICD = load()
SERVER = "SdpFacade"
PROGRAM = "sdp-facade"
FROM_OUTSIDE = {"TANGO_HOST"}
"""Variables that are read by libraries."""


def defaults(value: Any) -> Any:
    """Put the defaults of Compose's variables in their places."""
    if isinstance(value, str):
        return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value).replace("$$", "$")
    if isinstance(value, list):
        return [defaults(one) for one in value]
    if isinstance(value, dict):
        return {key: defaults(one) for key, one in value.items()}
    return value


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def variables(path: Path) -> dict[str, str]:
    """Return the variables of an env_file."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if line and not line.startswith("#"))


@cache
def read_by_the_code() -> set[str]:
    """Return the environment variables of ours that are named in the sources."""
    texts = [path.read_text() for package in ("facade", "devices") for path in (ROOT / package).rglob("*.py")]
    texts = [text.replace("{VARIABLES}", VARIABLES) for text in texts]
    return {name for text in texts for name in re.findall(r'"(SDP_[A-Z_]+|KAFKA_BOOTSTRAP)"', text)} | FROM_OUTSIDE


def parse(arguments: Sequence[str]) -> Mapping[str, Any]:
    """Parse a command line of sdp-facade without running it, and give its options; what is wrong is an exception."""
    command, context, rest = _command(), None, list(arguments)
    while hasattr(command, "resolve_command"):
        context = command.make_context(command.name or PROGRAM, rest, parent=context)
        _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    return dict(command.make_context(command.name, rest, parent=context).params)


@cache
def _command() -> Any:
    return typer.main.get_command(app)


def instructions(path: Path) -> Iterator[tuple[str, str]]:
    """Return the instructions of a Dockerfile with their arguments."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, " ".join(rest.split())
