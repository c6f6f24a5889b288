"""The option of sub-commands that use the Tango database."""

import socket
from typing import Annotated

import typer

from facade.errors import ConfigError, InfraError

TangoHost = Annotated[str, typer.Option(envvar="TANGO_HOST", help="Tango database, host:port.")]

_ANSWER = 2.0
"""Longest wait for a connection [s]."""


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
    host, _, port = tango_host.rpartition(":")
    try:
        socket.create_connection((host.rpartition(",")[2], int(port)), _ANSWER).close()
    except (OSError, OverflowError) as error:
        what = f"the Tango database at {tango_host!r} does not answer: {error}"
        raise InfraError(f"{what}; start it, or set TANGO_HOST or --tango-host") from error
