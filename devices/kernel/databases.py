"""Several Tango databases, each of which has the addresses of all device servers.

Theory of operation
-------------------
``TANGO_HOST`` may name several databases, with commas between. Tango takes the first one that accepts a connection. So
it goes on to the next if a database is gone, but a program that starts waits for one that stands still, 9 s for each
call, and fails. A device server therefore puts those that answer before the others when it starts: `put_first`.

Tango exports the devices of a server in the one database that it uses. A client that uses another one would find no
address there. So each server also exports its devices in all others, and looks every few seconds whether they still
have its address: `Exporting`. This also serves a database that was restored without addresses: it has them again
within seconds, and no server has to be restarted.

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
from enum import Enum
from functools import cache

import tango

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


def answering() -> list[tango.Database]:
    """Return the databases that answer, in the order of the configuration."""
    return [_open(one) for one in addresses() if is_database(one, _ANSWERS_WITHIN)]


def _open(address: str) -> tango.Database:
    host, _, port = address.rpartition(":")
    return tango.Database(host, int(port))


class Exporting:
    """Keeps the devices of this process exported in each database."""

    def __init__(self) -> None:
        self._util = tango.Util.instance(False)
        self._own = self._util.get_dserver_device()
        self._ior = self._util.get_dserver_ior(self._own)
        self._told: set[str] = set()
        """Databases whose refusal was logged."""
        self._silent: Counter[str] = Counter()
        """Looks at each other address without an answer."""

    def step(self) -> None:
        """Look at each database, and export the devices where it has no address of a server."""
        looked = [(database, self._look(database)) for database in answering()]
        found = [(database, entry) for database, entry in looked if entry is not Entry.UNKNOWN]
        entries = [entry for _, entry in found]
        if entries and (entries[0] is Entry.OWN or Entry.TAKEN not in entries):
            for database, entry in found:
                if entry is not Entry.OWN:
                    self._export(database)

    def run(self, stop: threading.Event) -> None:
        """Keep them exported until `stop` is set."""
        run_steps(self.step, stop, "exporting the devices in the Tango databases", each=_LOOK_AGAIN)

    def _look(self, database: tango.Database) -> Entry:
        try:
            # Other calls of the database keep Python's lock while they use the network.
            (is_exported, *_), (_, ior, *_) = database.command_inout("DbGetDeviceInfo", self._own.get_name())
        except tango.DevFailed as failed:
            # Only a database that does not know the server is free: a call that failed says nothing of another one.
            return Entry.FREE if failed.args[0].reason == "DB_DeviceNotDefined" else Entry.UNKNOWN
        if ior == self._ior:
            return Entry.OWN if is_exported else Entry.FREE
        address = read_ior(ior) if is_exported else None
        seen = Located.GONE if address is None else locate(address, _ANSWERS_WITHIN)
        self._silent[ior] = self._silent[ior] + 1 if seen is Located.SILENT else 0
        return Entry.FREE if seen is Located.GONE or self._silent[ior] > _LOST_AFTER else Entry.TAKEN

    def _export(self, database: tango.Database) -> None:
        where = f"{database.get_db_host()}:{database.get_db_port()}"
        # The admin device comes last: by its address this server knows that all were exported.
        iors = {one.get_name(): self._util.get_device_ior(one) for one in self._util.get_device_list("*")}
        iors = {name: ior for name, ior in iors.items() if not name.startswith("dserver/")}
        iors[self._own.get_name()] = self._ior
        try:
            for name, ior in iors.items():
                about = [name, ior, socket.gethostname(), str(os.getpid()), str(self._own.get_dev_idl_version())]
                database.command_inout("DbExportDevice", about)
        except tango.DevFailed as failed:
            if where not in self._told:
                self._told.add(where)
                _log.warning("devices cannot be exported in the Tango database %s: %s", where, failed.args[0].desc)
        else:
            self._told.discard(where)
            _log.warning("devices exported in the Tango database %s, which had no address of them", where)
