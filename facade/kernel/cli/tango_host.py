"""The Tango database, and the devices, that a person names for a sub-command."""

import re
import socket
from typing import Annotated

import typer

from facade.kernel.corba import is_database
from facade.kernel.errors import ConfigError, InfraError

_ANSWER = 2.0
"""Longest wait for a connection, and for an answer [s]."""


def _each(tango_host: str) -> str:
    return ",".join(filter(None, (one.strip() for one in tango_host.split(","))))


def first_that_answers(tango_host: str) -> str:
    """Return the first of several databases with commas between that answers; all if none does.

    PyTango takes the first one that accepts a connection, also if that stands still.
    """
    hosts = _each(tango_host)
    return next((one for one in hosts.split(",") if is_database(one, _ANSWER)), hosts) if "," in hosts else hosts


TangoHost = Annotated[
    str,
    typer.Option(
        envvar="TANGO_HOST",
        callback=first_that_answers,
        help="Tango database, host:port; several: the first that answers.",
    ),
]


EachTangoHost = Annotated[
    str,
    typer.Option(
        envvar="TANGO_HOST",
        callback=_each,
        help="Tango databases, host:port with commas between; each gets the same.",
    ),
]


def device_name(name: str) -> str:
    """Return the name of a device, which is without the database.

    Raises
    ------
    ConfigError
        The name begins with the address of a database.
    """
    if found := re.fullmatch(r"tango://([^/]+)/(.+)", name, re.IGNORECASE):
        what = f"expected {found[2]}, and its database by TANGO_HOST or --tango-host={found[1]}"
        raise ConfigError(f"device: {what}, got {name!r:.200}")
    return name


def require_tango_host(tango_host: str) -> None:
    """Raise an error without an address.

    Raises
    ------
    ConfigError
        It is missing, or not of the form host:port.
    """
    host, _, port = tango_host.rpartition(":")
    if not host or not port.isdecimal():
        got = f"{tango_host!r}" if tango_host else "nothing"
        raise ConfigError(f"TANGO_HOST: expected host:port of the Tango database, got {got}; set it or --tango-host")


def require_tango_database(tango_host: str) -> None:
    """Raise an error if no server listens at the address, within a second or two and without Tango.

    Raises
    ------
    ConfigError
        There is no address.
    InfraError
        Nothing listens at the address.
    """
    require_tango_host(tango_host)
    if fault := _fault(tango_host.rpartition(",")[2]):
        what = f"the Tango database at {tango_host!r} does not answer: {fault}"
        raise InfraError(f"{what}; start it, or set TANGO_HOST or --tango-host")


def _fault(tango_host: str) -> str:
    """Return why no server listens at an address; empty: one does."""
    host, _, port = tango_host.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ANSWER).close()
    except (OSError, OverflowError, ValueError) as error:
        return str(error)
    return ""
