"""Images: ours from docker/Dockerfile, and those that it and Compose build upon, from Debian packages alone.

Names and tags stand in docker/compose.yaml and docker/Dockerfile alone.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from facade.infra import kafka, tools
from facade.kernel.errors import InfraError
from facade.kernel.resources import resource
from sdp_facade_lab.progress import ProgressLine

LOCAL: Final = "localhost"
"""Where an image is that comes from no registry; the value of SKA_IMAGES then."""
STANDING_IN: Final = ("kafka", "tango-db", "tango-databaseds", "prometheus")
"""Services whose images are stages of docker/local/Dockerfile, of the same name."""
HOST: Final = f"{LOCAL}/sdp-facade-host:local"
"""A machine with systemd."""
RELEASES: Final = ("bookworm", "trixie")
"""Of Debian, on which README's commands are tried."""
UBUNTU: Final = {"noble": "http://archive.ubuntu.com/ubuntu noble main universe"}
"""Releases of Ubuntu, which are tried only when asked for, and where apt finds them."""
_STARTS_WITHIN_S: Final = 300.0
_OF_APT: Final = ("/var/lib/apt/lists", "/var/cache/apt")
_SYSTEM: Final = f"{LOCAL}/debian:local"


class Images:
    """Builds images, and removes those that it made.

    Parameters
    ----------
    folder
        The folder `docker` of the sources.
    scratch
        A folder for temporary files of a build.
    """

    def __init__(self, folder: Path, scratch: Path, progress: ProgressLine) -> None:
        self._folder, self._scratch, self._progress = folder, scratch, progress
        self._services: dict[str, dict[str, Any]] = yaml.safe_load((folder / "compose.yaml").read_text())["services"]

    @property
    def ours(self) -> str:
        """Return the name of the image of the facade."""
        return f"{LOCAL}/{self._named('topics')}"

    @property
    def bases(self) -> dict[str, str]:
        """Return the name of each image from Debian packages, by stage of docker/local/Dockerfile."""
        named = {service: self._named(service) for service in STANDING_IN}
        return {"python": f"{LOCAL}/python:{_python()}-slim"} | {
            stage: name if name.startswith(LOCAL) else f"{LOCAL}/{name}" for stage, name in named.items()
        }

    def make_bases(self) -> None:
        """Make those images from Debian packages that are missing."""
        self.make_debian(_release(), _SYSTEM)
        libraries = kafka.libraries(self._progress.step)
        for stage, name in self.bases.items():
            if not self._exists(name):
                self._progress.step(f"image {name}: from Debian packages")
                contexts = [f"--build-context=libs={libraries}", f"--build-context=settings={self._folder / 'kafka'}"]
                self._build_locally("--target", stage, "--tag", name, *contexts)

    def make_ours(self, *, local: bool) -> None:
        """Build the image of the facade, upon the local Python or the official one."""
        self._progress.step(f"image {self.ours}: from docker/Dockerfile")
        python = [f"--build-arg=PYTHON={_python()}"] if local else []
        # One layer for each stage: each of 14 intermediate ones is packed, which takes most of the time on a busy disk.
        argv = ["--layers=false", "--file", str(self._folder / "Dockerfile"), "--tag", self.ours]
        argv += [*python, *_pip_settings()]
        self._build(*argv, str(self._folder.parent))

    def make_host(self) -> None:
        """Make the image of a machine with systemd, upon our image."""
        self._progress.step(f"image {HOST}: Debian with systemd, the facade and its units")
        units = self._folder.parent / "packaging" / "systemd"
        argv = ["--target", "host", "--tag", HOST, f"--build-arg=FACADE={self.ours}", f"--build-context=units={units}"]
        self._build_locally(*argv)

    def size(self) -> int:
        """Return the size of the image of the facade [bytes]."""
        return int(podman("image", "inspect", "--format", "{{.Size}}", self.ours))

    def remove(self, *, bases: bool) -> None:
        debians = [_SYSTEM, *(f"{LOCAL}/debian:{release}" for release in (*RELEASES, *UBUNTU))]
        names = [HOST, self.ours, *((*self.bases.values(), *debians) if bases else ())]
        there = [name for name in names if self._exists(name)]
        if there:
            podman("rmi", "--force", *there)
        if bases:  # the layers of stages in between have no name
            podman("image", "prune", "--force")

    def make_debian(self, release: str, name: str = "") -> str:
        name = name or f"{LOCAL}/debian:{release}"
        if not self._exists(name):
            self._make_system(release, name)
        return name

    def _make_system(self, release: str, name: str) -> None:
        mmdebstrap = tools.find_program("mmdebstrap", "it makes the smallest Debian; `sudo apt-get install mmdebstrap`")
        self._progress.step(f"image {name}: mmdebstrap makes the smallest Debian (20 s to 1 min)")
        archive = self._scratch / "root.tar"
        argv = [mmdebstrap, "--quiet", "--variant=minbase", release, str(archive)]
        if release in UBUNTU:
            # Debian has no key of Ubuntu: its smallest system is taken as it comes, and has the key for what follows.
            argv.append(f"deb [trusted=yes] {UBUNTU[release]}")
            argv.insert(1, "--include=apt")  # which Ubuntu's smallest system lacks
            argv.insert(1, f"--customize-hook=echo 'deb {UBUNTU[release]}' >\"$1/etc/apt/sources.list\"")
        installed(lambda: tools.run(argv, what="making Debian's base system"), self._progress)
        podman("import", str(archive), name)
        archive.unlink()

    def _build_locally(self, *arguments: str) -> None:
        """Build a stage of docker/local/Dockerfile, with apt's lists and archives in folders that no image holds."""
        for inside in _OF_APT:
            (folder := self._scratch / Path(inside).name).mkdir(exist_ok=True)
            arguments = (f"--volume={folder}:{inside}", *arguments)
        self._build(*arguments, str(self._folder / "local"))

    def _build(self, *arguments: str) -> None:
        # OCI's format has no health check. Only the host's network reaches the packages.
        argv = ["build", "--quiet", "--format=docker", "--network=host", *arguments]
        installed(lambda: podman(*argv), self._progress)

    def _exists(self, name: str) -> bool:
        argv = [_podman(), "image", "exists", name]
        return subprocess.run(argv, env=environment(), check=False).returncode == 0

    def _named(self, service: str) -> str:
        name: str = self._services[service]["image"]
        version = name.partition("${SDP_FACADE_TAG:-")[2].partition("}")[0]
        if version:
            return f"{name.partition(':')[0]}:{version}"
        return LOCAL + name.partition("}")[2] if name.startswith("${SKA_IMAGES") else name


def installed(install: Callable[[], str], progress: ProgressLine) -> str:
    try:
        return install()
    except InfraError as error:
        progress.step(f"an installation is tried once more: {error}")
        return install()


def podman(*arguments: str) -> str:
    """Run podman to its end and return its standard output."""
    # Without systemd, podman warns on standard error that it runs no health checks: `await_healthy` runs them.
    argv = [_podman(), *arguments]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        what = f"`{' '.join(argv)}` failed: expected exit code 0, got {done.returncode}"
        raise InfraError(f"{what}:\n{tools.tail(done.stdout + done.stderr)}")
    return done.stdout.strip()


def log_of(container: str) -> str:
    """Return the end of the log of a container."""
    argv = ["podman", "logs", "--tail=15", container]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def kill_process(container: str, progress: ProgressLine) -> None:
    """Let the first process of a container die as in a crash, and wait until podman has started another.

    After `podman kill` it would stay away.
    """

    def pid() -> int:
        return int(podman("inspect", "--format", "{{.State.Pid}}", container))

    # Podman says 0 of a container that does not run, and signal 9 to process 0 would end ourselves.
    progress.demand(lambda: pid() != 0, _STARTS_WITHIN_S, f"a process of {container}")
    if before := pid():
        os.kill(before, signal.SIGKILL)
    progress.demand(lambda: pid() not in (0, before), _STARTS_WITHIN_S, f"another process of {container}")


def environment() -> dict[str, str]:
    """Return the environment of podman: with the settings of docker/local unless others were chosen."""
    settings = str(resource("docker", "kafka", "pom.xml").parents[1] / "local" / "containers.conf")
    return {"CONTAINERS_CONF": settings, **os.environ}


def _podman() -> str:
    packages = "podman runc netavark aardvark-dns iptables catatonit mmdebstrap"
    return tools.find_program("podman", f"on Debian: sudo apt-get install --no-install-recommends {packages}")


def _release() -> str:
    return tools.run(["sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME"], what="asking for the release").strip()


def _python() -> str:
    """Return the version of Debian's Python, which is in the image `python`."""
    line = tools.run(["apt-cache", "depends", "python3-minimal"], what="asking which Python Debian has")
    names = [word for word in line.split() if word.startswith("python3.")]
    return names[0].removeprefix("python").removesuffix("-minimal")


def _pip_settings() -> Iterator[str]:
    """Mount pip's settings of this machine while the image is built, and the certificates that they name."""
    for file in (Path("/etc/pip.conf"), Path(os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))):
        if file.is_file():
            yield f"--volume={file}:{file}:ro"
