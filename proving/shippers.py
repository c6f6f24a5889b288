"""rsyslog and collectd as Debian has them, with the configurations of packaging/shippers, into a deployment's bus."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from facade.errors import InfraError
from facade.infra.processes import Process
from facade.infra.tools import Report
from facade.resources import resource
from proving.debian import SHIPPERS, unpacked_packages
from proving.deployment import Deployment

RSYSLOG, COLLECTD = "rsyslog", "collectd"
_LONGEST_WRITE = 60.0
"""Longest wait for a daemon to take a record [s]."""
_LONGEST_PATH = 107
"""Of a Unix socket [bytes]."""


class Shippers:
    """The programs, unpacked into a folder of the user; nothing is installed.

    Parameters
    ----------
    folder
        For their configurations and what waits to be sent.

    Raises
    ------
    InfraError
        Debian's packages cannot be had; the message says why, and how to do without.
    """

    def __init__(self, folder: Path, report: Report) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._unpacked = folder, unpacked_packages(SHIPPERS, report)
        self._root = self._unpacked.path

    def rsyslog(self, deployment: Deployment, address: Path) -> Process:
        """Start rsyslog, which takes what programs write to a socket."""
        if len(os.fsencode(address)) > _LONGEST_PATH:
            raise InfraError(f"{address}: expected a path of at most {_LONGEST_PATH} bytes for a Unix socket")
        address.unlink(missing_ok=True)
        changes = {
            "/var/spool/rsyslog": str(self._folder),
            'module(load="imuxsock")': 'module(load="imuxsock" SysSock.Use="off")\n'
            f'input(type="imuxsock" Socket="{address}")',
            "localhost:9092": deployment.settings.bootstrap,
            "sdp.logs": deployment.connection.topic("logs"),
        }
        modules = next(path for one in self._unpacked.libraries if (path := one / "rsyslog").is_dir())
        argv = [f"{self._root}/usr/sbin/rsyslogd", "-n", "-i", "NONE", "-M", str(modules), "-f"]
        return self._start(deployment, RSYSLOG, argv, changes)

    def collectd(self, deployment: Deployment, key: str) -> Process:
        """Start collectd, which measures this machine; `key` is that of its records."""
        changes = {
            "Interval 10": f'Interval 1\nBaseDir "{self._folder}"\nPIDFile "{self._folder}/collectd.pid"\n'
            f'PluginDir "{self._root}/usr/lib/collectd"\nHostname "{key.rpartition("/")[2]}"\nFQDNLookup false',
            "/usr/share/collectd": f"{self._root}/usr/share/collectd",
            "localhost:9092": deployment.settings.bootstrap,
            "sdp.metrics": deployment.connection.topic("metrics"),
            "r01/node-0001": key,
        }
        return self._start(deployment, COLLECTD, [f"{self._root}/usr/sbin/collectd", "-f", "-C"], changes)

    def _start(self, deployment: Deployment, name: str, argv: list[str], changes: Mapping[str, str]) -> Process:
        text = (resource("packaging", "shippers") / f"{name}.conf").read_text()
        for old, new in changes.items():
            if old not in text:
                raise InfraError(f"{name}.conf: expected {old!r} in it, which is changed here")
            text = text.replace(old, new)
        file = self._folder / f"{name}.conf"
        file.write_text(text)
        libraries = self._unpacked.environment()["LD_LIBRARY_PATH"]
        inherited = filter(None, (libraries, os.environ.get("LD_LIBRARY_PATH")))
        return deployment.start(name, [*argv, str(file)], LD_LIBRARY_PATH=os.pathsep.join(inherited))


class LogSocket:
    """Writes to a log as the C library does; a daemon that cannot keep up holds the writer up, but not for ever."""

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_LONGEST_WRITE)
        self._socket.connect(str(address))

    def write(self, priority: int, program: str, text: str) -> None:
        """Write one record; the priority is that of syslog, with its facility.

        Raises
        ------
        OSError
            The daemon is not there, or has taken nothing for a minute.
        """
        self._socket.send(f"<{priority}>Nov 23 10:00:00 {program}[7]: {text}".encode())

    def close(self) -> None:
        """End."""
        self._socket.close()
