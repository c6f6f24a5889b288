"""Unpacks Debian packages into a folder of the user: nothing is installed, no root, no package scripts."""

import os
import re
import shutil
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from facade.infra import tools
from facade.kernel.errors import InfraError
from facade.kernel.resources import resource


@dataclass(frozen=True, slots=True)
class Packages:
    """Packages that are unpacked together."""

    name: str
    """Of their folder."""
    what: str
    """Their purpose, with which reports begin."""
    list: Path
    """The file that lists them."""
    programs: tuple[str, ...]
    """What must be in them, with all of its libraries."""
    megabytes: int
    hint: str
    """What to do where there is no apt."""


SHIPPERS: Final = Packages(
    name="shippers",
    what="shippers",
    list=resource("packaging", "shippers", "debian-packages.txt"),
    programs=("usr/sbin/rsyslogd", "usr/sbin/collectd", "usr/lib/collectd/write_kafka.so"),
    megabytes=3,
    hint="rsyslog and collectd are unpacked from Debian's packages; elsewhere, do without `--logs`",
)


@dataclass(frozen=True, slots=True)
class UnpackedRoot:
    """A folder that looks like ``/`` to the programs that were unpacked into it."""

    path: Path

    def environment(self) -> dict[str, str]:
        """Return the environment in which its programs find their libraries and each other."""
        libraries = [str(path) for path in self.libraries]
        programs = [
            str(self.path / "usr/bin"),
            str(self.path / "usr/sbin"),
            os.environ.get("PATH", os.defpath),
        ]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "PATH": ":".join(programs)}

    @property
    def libraries(self) -> list[Path]:
        """Return the folders of shared libraries: Debian puts them below the name of the architecture."""
        triplet = str(sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu")
        return [path for path in (self.path / "usr/lib" / triplet, self.path / "lib" / triplet) if path.is_dir()]


def unpacked_packages(packages: Packages, report: tools.Notify) -> UnpackedRoot:
    """Return the root with the packages of a list, downloaded and unpacked the first time."""
    listed = packages.list.read_text()
    wanted = _parse(listed)

    def install(folder: Path) -> None:
        for program in ("apt-get", "apt-cache", "dpkg"):
            tools.find_program(program, packages.hint)
        names = _choose(packages, wanted, report)
        report(f"{packages.what}: apt-get downloads {len(names)} packages (once, {packages.megabytes} MB; 5 to 60 s)")
        debs, root = folder / "debs", folder / "root"
        debs.mkdir()
        tools.run(
            ["apt-get", "-q", "download", *names], what=f"downloading the packages of {packages.list}", folder=debs
        )
        for deb in sorted(debs.glob("*.deb")):
            tools.run(["dpkg", "-x", str(deb), str(root)], what=f"unpacking {deb.name}")
        shutil.rmtree(debs)
        _check_libraries(packages, UnpackedRoot(root))

    digest = sha256(listed.encode()).hexdigest()[:12]
    return UnpackedRoot(tools.installed_once(f"{packages.name}-{digest}", install, report) / "root")


def _parse(listed: str) -> list[tuple[str, ...]]:
    """Return for each line its alternatives."""
    lines = (line.partition("#")[0].strip() for line in listed.splitlines())
    return [tuple(name.strip() for name in line.split("|")) for line in lines if line]


def _choose(packages: Packages, wanted: list[tuple[str, ...]], report: tools.Notify) -> list[str]:
    """Return for each line the first package that apt can download."""
    names = [name for line in wanted for name in line]
    known = _known(names)
    if not all(known.intersection(line) for line in wanted) and os.geteuid() == 0:
        report(f"{packages.what}: apt-get update, as its lists lack some packages")
        tools.run(["apt-get", "-q", "update"], what="updating apt's lists")
        known = _known(names)
    lacking = [" | ".join(line) for line in wanted if not known.intersection(line)]
    if lacking:
        raise InfraError(
            f"apt has no package {', '.join(lacking)} (of {packages.list}); run `sudo apt-get update`. If they stay "
            "unknown, this distribution names them otherwise: find them with `apt-cache search` and add them "
            "as alternatives in that file"
        )
    return [next(name for name in line if name in known) for line in wanted]


def _known(names: Iterable[str]) -> set[str]:
    output = tools.run(
        ["apt-cache", "policy", *names], what="asking apt for its packages", env={**os.environ, "LC_ALL": "C"}
    )
    return set(re.findall(r"^(\S+):\n(?:  .*\n)*?  Candidate: (?!\(none\))", output, re.MULTILINE))


def _check_libraries(packages: Packages, root: UnpackedRoot) -> None:
    missing: set[str] = set()
    for program in packages.programs:
        path = root.path / program
        if not path.exists():
            raise InfraError(f"{path} is in none of the packages of {packages.list}")
        output = tools.run(["ldd", str(path)], what=f"looking for the libraries of {path.name}", env=root.environment())
        missing.update(
            f"{name} (for {path.name})" for name in re.findall(r"^\s*(\S+) => not found", output, re.MULTILINE)
        )
    if missing:
        raise InfraError(
            f"libraries are missing: {', '.join(sorted(missing))}; find the packages that hold them "
            f"(`apt-file search NAME`) and add them to {packages.list}"
        )
