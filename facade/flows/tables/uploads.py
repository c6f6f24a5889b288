"""Puts a table where a reference can refer to it: whole or not at all, and never over another one."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from facade.errors import ConfigError
from facade.flows.tables.messages import Refused
from facade.flows.tables.objects import filesystem
from facade.flows.tables.roots import shown, split
from facade.flows.tables.sources import Unreadable
from facade.flows.tables.spool import write_all

_FILE = "file://"


def upload(url: str, parts: Iterator[bytes]) -> None:
    """Write a table to a file (``file://``), or to a store by fsspec.

    Raises
    ------
    ConfigError
        It cannot be put there; what was written of it is not left there under its name.
    """
    write = _to_file if url.startswith(_FILE) else _to_store
    try:
        write(url, parts)
    except ConfigError:
        raise
    except Unreadable as error:
        raise ConfigError(error.refused.detail) from error
    except FileExistsError as error:
        raise ConfigError(f"{shown(url)} is there already: give each version of a table a name of its own") from error
    except NotImplementedError as error:
        raise ConfigError(f"{shown(url)}: expected a place that can be written to, got one to read from") from error
    except Exception as error:  # whatever a library raises; its own words may hold a key
        number = getattr(error, "errno", None)
        what = type(error).__name__ + (f" ({os.strerror(number)})" if isinstance(number, int) else "")
        raise ConfigError(f"{shown(url)}: the table cannot be put there: {what}") from error


def _to_file(url: str, parts: Iterator[bytes]) -> None:
    path = Path(unquote(url.removeprefix(_FILE).removeprefix("localhost")))
    if not path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"expected file:/// and an absolute path without .., got {shown(url)}")
    if path.exists():
        raise FileExistsError
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb", buffering=0) as file:
            for one in parts:
                write_all(file, one)
        path.hardlink_to(part)  # unlike a change of its name this replaces nothing
    finally:
        part.unlink(missing_ok=True)


def _to_store(url: str, parts: Iterator[bytes]) -> None:
    address = split(url)
    if isinstance(address, Refused):
        raise ConfigError(address.detail)
    store = filesystem(address)
    if address.is_web:
        raise NotImplementedError
    if store.exists(str(address)):
        raise FileExistsError
    # What is begun in a transaction and fails is discarded; without one, closing it would publish a part.
    with store.transaction, store.open(str(address), "wb") as file:
        for one in parts:
            file.write(one)
