"""The option of sub-commands that talk to the Tango database."""

from typing import Annotated

import typer

from facade.errors import ConfigError

TangoHost = Annotated[str, typer.Option(envvar="TANGO_HOST", help="Tango database, host:port.")]


def require_tango_host(tango_host: str) -> None:
    """Make sure that there is an address.

    Raises
    ------
    ConfigError
        It is missing, or is no host:port.
    """
    host, _, port = tango_host.rpartition(":")
    if not host or not port.isdecimal():
        got = f"{tango_host!r}" if tango_host else "nothing"
        raise ConfigError(f"TANGO_HOST: expected host:port of the Tango database, got {got}; set it or --tango-host")
