"""Several Tango databases, each of which has the addresses of all device servers.

Theory of operation
-------------------
``TANGO_HOST`` may name several databases, with commas between. Tango takes the first one that accepts a connection. So
it goes on to the next if a database is gone, but a program that starts waits for one that stands still, 9 s for each
call, and fails. A device server therefore puts those that answer before the others when it starts: `put_first`.

Tango exports the devices of a server in the one database that it uses. A client that uses another one would find no
address there. So each server also exports its devices in all others, and looks every few seconds whether they still
have its address: `Exporting`. This also serves a database that was restored without addresses: it has them again
within seconds, and no server has to be restarted. DevRestart and RestartServer create devices again, with new
addresses. Tango enters these in the database that it uses, and the server in the others.

A server must not take the place of another one. The first database in the order of ``TANGO_HOST`` that answers decides,
so that all decide alike, here as in `devices.kernel.standby`: the server that it names is exported in all others. If it
names none, a server exports itself unless another database names one that may live. A database that was away may come
back with the address of a server that has been replaced meanwhile. That server is taken for lost if its address stays
silent for longer than any standby waits.
"""

import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache

import tango

from devices.kernel.base import FacadeDevice
from facade.kernel.corba import Located, is_database, locate, read_ior
from facade.kernel.runtime.steps import run_steps

_log = logging.getLogger(__name__)

_VARIABLE = "TANGO_HOST"
_ANSWERS_WITHIN = 1.0
"""A database that stands still takes connections and answers nothing [s]."""
_LOOK_AGAIN = 2.0
"""Time between two looks at the databases [s]."""
_LOST_AFTER = 15
"""Looks at an address that gives no answer, after which its server is lost."""
FAILURES = (tango.DevFailed, RuntimeError)
"""Errors of a call to a database: PyTango passes some errors of CORBA on as the latter."""


class Entry(Enum):
    """What a database has as the address of a server."""

    OWN = "this server"
    FREE = "none, or that of a server that is gone"
    TAKEN = "another server, which may live"
    UNKNOWN = "it does not say"


def addresses() -> tuple[str, ...]:
    """Return the addresses of the databases, in the order of the configuration."""
    return tuple(one.strip() for one in _configured().split(",") if one.strip())


@cache
def _configured() -> str:
    """Return ``TANGO_HOST`` as it was configured; asked for the first time before `put_first` changes it."""
    return str(tango.ApiUtil.get_env_var(_VARIABLE) or "")


def put_first() -> None:
    """Let this process use a database that answers: those that do come before the others in its environment."""
    found = addresses()
    if len(found) > 1:
        answering = [one for one in found if is_database(one, _ANSWERS_WITHIN)]
        os.environ[_VARIABLE] = ",".join([*answering, *(one for one in found if one not in answering)])


def answering() -> Iterator[tango.Database]:
    """Open the databases that answer, in the order of the configuration; one that cannot be opened is left out."""
    for one in addresses():
        if is_database(one, _ANSWERS_WITHIN):
            try:
                database = open_database(one)
            except FAILURES as failed:
                _log.debug("Tango database %s cannot be opened: %s", one, failed)
            else:
                yield database


def address_of(database: tango.Database) -> str:
    """Return the address of a database, ``host:port``."""
    return f"{database.get_db_host()}:{database.get_db_port()}"


def exported_ior(database: tango.Database, device: str) -> str | None:
    """Return the reference that a database has of a device; empty: it has none; None: it does not say."""
    try:
        # Other calls of the database keep Python's lock while they use the network.
        (is_exported, *_), (_, ior, *_) = database.command_inout("DbGetDeviceInfo", device)
    except tango.DevFailed as failed:
        # Only a database that does not know the device has none: a call that failed says nothing of a server.
        return "" if failed.args[0].reason == "DB_DeviceNotDefined" else None
    except RuntimeError:
        return None
    return str(ior) if is_exported else ""


def open_database(address: str) -> tango.Database:
    """Open the database at an address, ``host:port``."""
    host, _, port = address.rpartition(":")
    return tango.Database(host, int(port))


class Exporting:
    """Keeps the devices of this process exported in each database."""

    def __init__(self) -> None:
        self._util = tango.Util.instance(False)
        self._own = self._util.get_dserver_device()
        self._ior = self._util.get_dserver_ior(self._own)
        self._given: dict[str, Mapping[str, str]] = {}
        """References that each database has, by the name of the device."""
        self._told: set[str] = set()
        """Databases whose refusal was logged."""
        self._silent: Counter[str] = Counter()
        """Looks at each other address without an answer."""

    def step(self) -> None:
        """Look at each database, and export the devices where their addresses are not known."""
        if self._util.is_svr_shutting_down():
            return
        looked = [(database, self._look(database)) for database in answering()]
        found = [(database, entry) for database, entry in looked if entry is not Entry.UNKNOWN]
        entries = [entry for _, entry in found]
        if entries and (entries[0] is Entry.OWN or Entry.TAKEN not in entries):
            iors = self._iors()
            for database, entry in found:
                self._export(database, entry, iors)

    def run(self, stop: threading.Event) -> None:
        """Keep them exported until `stop` is set."""
        run_steps(self.step, stop, "exporting the devices in the Tango databases", each=_LOOK_AGAIN)

    def _look(self, database: tango.Database) -> Entry:
        ior = exported_ior(database, self._own.get_name())
        if ior is None:
            return Entry.UNKNOWN
        if ior == self._ior:
            return Entry.OWN
        address = read_ior(ior) if ior else None
        seen = Located.GONE if address is None else locate(address, _ANSWERS_WITHIN)
        self._silent[ior] = self._silent[ior] + 1 if seen is Located.SILENT else 0
        return Entry.FREE if seen is Located.GONE or self._silent[ior] > _LOST_AFTER else Entry.TAKEN

    def _iors(self) -> dict[str, str]:
        with FacadeDevice.at_hand:  # Tango may delete a device meanwhile
            devices = {one.get_name(): self._util.get_device_ior(one) for one in FacadeDevice.present.values()}
        # A device that is being made has no address yet.
        iors = {name: ior for name, ior in devices.items() if read_ior(ior) is not None}
        # The admin device comes last: by its address this server knows that all were exported.
        return iors | {self._own.get_name(): self._ior}

    def _export(self, database: tango.Database, entry: Entry, iors: Mapping[str, str]) -> None:
        where = address_of(database)
        # The first time it is this server's without an export from here, Tango has exported them.
        given = self._given.setdefault(where, iors) if entry is Entry.OWN else {}
        try:
            for name, ior in iors.items():
                if given.get(name) == ior:
                    continue
                if self._util.is_svr_shutting_down():
                    return  # Tango unexports them
                about = [name, ior, socket.gethostname(), str(os.getpid()), str(self._own.get_dev_idl_version())]
                database.command_inout("DbExportDevice", about)
        except FAILURES as failed:
            if where not in self._told:
                self._told.add(where)
                why = failed.args[0].desc if isinstance(failed, tango.DevFailed) else failed
                _log.warning("devices cannot be exported in the Tango database %s: %s", where, why)
        else:
            self._told.discard(where)
            self._given[where] = iors
            if entry is not Entry.OWN:
                _log.warning("devices exported in the Tango database %s, which had no address of them", where)
