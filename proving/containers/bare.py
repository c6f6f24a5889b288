"""README's two commands on a Debian that has nothing but make: as root, with sudo, and without any rights."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from facade.errors import InfraError
from facade.infra import tools
from proving.containers.images import RELEASES, Images, installed, podman
from proving.containers.project import NAME
from proving.progress import ProgressLine

_TESTS: Final = "tests/unit/test_topics.py tests/integration/test_example_flow.py"
"""One without processes, and one with a broker, a Tango database and device servers; all tests take too long here."""
_REFUSAL: Final = "neither root nor sudo; install by hand"
_STAMP: Final = ".venv/.stamp"
"""What `make` makes when all is installed."""
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_JAVA_CERTIFICATES: Final = Path("/etc/ssl/certs/java/cacerts")
_PIP: Final = Path("/etc/pip.conf")


def run(images: Images, progress: ProgressLine, folder: Path, releases: Sequence[str] = RELEASES) -> None:
    archive = folder / "sources.tar"
    _pack(Path(__file__).parents[2], archive)
    for release in releases:
        image = images.make_debian(release)
        with_root = BareMachine(f"{NAME}_{release}-root_1", image, archive, progress)
        said = with_root.refused("make demo", user="nobody-special")
        progress.step(f"{release}, a user without sudo: {said}")
        for command in ("make demo", f"make test ARGS='{_TESTS}'"):
            begin = progress.elapsed
            said = with_root.do(command)
            progress.step(f"{release}, root, `{command}`: exit code 0 after {progress.elapsed - begin:.0f} s; {said}")
        with_root.remove()
        begin = progress.elapsed
        with_sudo = BareMachine(f"{NAME}_{release}-sudo_1", image, archive, progress)
        with_sudo.allow_sudo("user")
        said = with_sudo.do("make demo", user="user")
        progress.step(
            f"{release}, a user with sudo, `make demo`: exit code 0 after {progress.elapsed - begin:.0f} s; {said}"
        )
        with_sudo.remove()


class BareMachine:
    """A container of a Debian without anything, with the sources in the home of each user."""

    def __init__(self, name: str, image: str, archive: Path, progress: ProgressLine) -> None:
        self._name, self._progress = name, progress
        podman("run", "--detach", "--network=host", "--init", *_settings(), "--name", name, image, "sleep", "infinity")
        podman("cp", str(archive), f"{name}:/sources.tar")
        self._install("make")

    def allow_sudo(self, user: str) -> None:
        self._install("sudo")
        self._exec(f"useradd --create-home {user} && echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{user}")

    def remove(self) -> None:
        podman("rm", "--force", "--time=0", self._name)

    def do(self, command: str, *, user: str = "root") -> str:
        """Run a command in the sources as a user and return its last line.

        It is run again if it fails before all that it needs is installed.
        """
        try:
            return _last(self._exec(self._within(command, user)))
        except InfraError as error:
            if self._has_all(user):
                raise
            self._progress.step(f"an installation is tried once more: {error}")
            return _last(self._exec(self._within(command, user)))

    def refused(self, command: str, *, user: str) -> str:
        self._exec(f"useradd --create-home {user}")
        try:
            self._exec(self._within(command, user))
        except InfraError as error:
            said = [line.strip() for line in str(error).splitlines() if _REFUSAL in line]
            if said:
                return said[0]
            raise
        raise InfraError(f"`{command}` as a user without rights: expected a refusal with {_REFUSAL!r}, got success")

    def _has_all(self, user: str) -> bool:
        try:
            self._exec(self._within(f"test -e {_STAMP}", user))
        except InfraError:
            return False
        return True

    def _install(self, package: str) -> None:
        install = f"apt-get -qq update && apt-get -qq install --yes --no-install-recommends {package}"
        installed(lambda: self._exec(install), self._progress)

    def _within(self, command: str, user: str) -> str:
        unpack = "mkdir -p ~/sources && tar --extract --file /sources.tar --directory ~/sources && cd ~/sources"
        script = f"{unpack} && {command}"
        # Not a log-in shell: it would drop the settings of this machine.
        return script if user == "root" else f'su {user} --command "{script}"'

    def _exec(self, script: str) -> str:
        return podman("exec", self._name, "sh", "-c", script)


def _pack(root: Path, archive: Path) -> None:
    """Pack what git knows, as it is in the working folder."""
    names = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True).stdout
    (names_file := archive.with_suffix(".names")).write_bytes(names)
    argv = ["tar", "--create", "--file", str(archive), "--directory", str(root), "--null", f"--files-from={names_file}"]
    tools.run(argv, what="packing the sources")


def _settings() -> Iterator[str]:
    """Give a container the certificates of this machine, and where pip was told to install from."""
    if _PIP.is_file():
        yield f"--volume={_PIP}:{_PIP}:ro"
    certificates = Path(os.environ.get("PIP_CERT", _CERTIFICATES))
    if certificates.is_file():
        yield f"--volume={certificates}:/run/host-certificates:ro"
        yield from (f"--env={name}=/run/host-certificates" for name in ("PIP_CERT", "SSL_CERT_FILE"))
    if _JAVA_CERTIFICATES.is_file():
        yield f"--volume={_JAVA_CERTIFICATES}:/run/host-java-certificates:ro"
        yield "--env=MAVEN_OPTS=-Djavax.net.ssl.trustStore=/run/host-java-certificates"


def _last(said: str) -> str:
    lines: Sequence[str] = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
