"""rsyslog and collectd as Debian has them, with the configurations of packaging/shippers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import Running

_PACKAGES = (
    *("rsyslog", "rsyslog-kafka", "collectd-core"),
    *("libestr0", "libfastjson4", "liblognorm5", "librdkafka1", "libyajl2"),
)
_CONFIGURATIONS = Path(__file__).parents[2] / "packaging" / "shippers"
_WITHIN = 90.0
"""For the download [s]."""


class Shippers:
    """The programs, unpacked into a folder; nothing is installed.

    Skips the test where Debian's packages cannot be had.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._root = folder, folder / "root"
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            pytest.skip("expected apt-get and dpkg-deb, which get rsyslog and collectd; there are none")
        quick = ("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10")
        try:
            self._run("apt-get", *quick, "download", *_PACKAGES)
        except subprocess.SubprocessError as error:
            pytest.skip(
                f"apt-get download {' '.join(_PACKAGES)}: {error}; run apt-get update, or see whether it is Debian"
            )
        for package in folder.glob("*.deb"):
            self._run("dpkg-deb", "-x", str(package), str(self._root))
        (self._libraries,) = {one.parent for one in self._root.glob("usr/lib/*/librdkafka.so.1")}

    def _run(self, *argv: str) -> None:
        subprocess.run(argv, cwd=self._folder, check=True, capture_output=True, timeout=_WITHIN)

    def rsyslog(self, deployment: Deployment, socket: Path) -> Running:
        """Start rsyslog, which takes what programs write to a socket."""
        changes = {
            "/var/spool/rsyslog": str(self._folder),
            'module(load="imuxsock")': 'module(load="imuxsock" SysSock.Use="off")\n'
            f'input(type="imuxsock" Socket="{socket}")',
            "localhost:9092": deployment.bootstrap,
            "sdp.logs": deployment.topic("logs"),
        }
        modules = f"{self._libraries}/rsyslog"
        argv = [f"{self._root}/usr/sbin/rsyslogd", "-n", "-i", "NONE", "-M", modules, "-f"]
        return self._start(deployment, "rsyslog", argv, changes)

    def collectd(self, deployment: Deployment, key: str) -> Running:
        """Start collectd, which measures this machine; `key` is that of its records."""
        changes = {
            "Interval 10": f'Interval 1\nBaseDir "{self._folder}"\nPIDFile "{self._folder}/collectd.pid"\n'
            f'PluginDir "{self._root}/usr/lib/collectd"\nHostname "{key.rpartition("/")[2]}"\nFQDNLookup false',
            "/usr/share/collectd": f"{self._root}/usr/share/collectd",
            "localhost:9092": deployment.bootstrap,
            "sdp.metrics": deployment.topic("metrics"),
            "r01/node-0001": key,
        }
        return self._start(deployment, "collectd", [f"{self._root}/usr/sbin/collectd", "-f", "-C"], changes)

    def _start(self, deployment: Deployment, name: str, argv: list[str], changes: dict[str, str]) -> Running:
        text = (_CONFIGURATIONS / f"{name}.conf").read_text()
        for old, new in changes.items():
            assert old in text, f"{name}.conf: expected {old!r} in it, which the test changes"
            text = text.replace(old, new)
        file = self._folder / f"{name}.conf"
        file.write_text(text)
        libraries = os.pathsep.join(filter(None, (str(self._libraries), os.environ.get("LD_LIBRARY_PATH"))))
        return deployment.start(name, [*argv, str(file)], LD_LIBRARY_PATH=libraries)
