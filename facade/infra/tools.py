"""Runs external programs (java, mvn, apt-get ...) and installs things once for each user."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from facade.kernel.errors import InfraError

Notify = Callable[[str], None]
"""Called with a short text about each step that may take a while."""

_TAIL_LINES: Final = 15


def find_program(name: str, hint: str) -> str:
    """Return the full path of a program on the PATH.

    Raises
    ------
    InfraError
        It does not exist; the message ends with the hint.
    """
    path = shutil.which(name)
    if path is None:
        raise InfraError(f"the program `{name}` is not on the PATH ({os.environ.get('PATH', '')!r}); {hint}")
    return path


def run(
    argv: Sequence[str],
    *,
    what: str,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Run a program to its end and return its output (both streams).

    Parameters
    ----------
    what
        Purpose of the program, as the subject of the error message.

    Raises
    ------
    InfraError
        It cannot be started or ends with an error; the message has the end of its output.
    """
    try:
        done = subprocess.run(
            list(argv),
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise InfraError(f"{what} failed: {error} (command: {' '.join(argv)})") from error
    if done.returncode != 0:
        raise InfraError(
            f"{what} failed: expected exit code 0, got {done.returncode} from `{' '.join(argv)}`:\n" + tail(done.stdout)
        )
    return done.stdout


def tail(text: str) -> str:
    """Return the last lines of an output, for an error message, without Java's stack frames."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("\t")]
    return "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:])


def tail_of(log: Path | str) -> str:
    """Return the last lines of a log file, for an error message."""
    try:
        return tail(Path(log).read_text(errors="replace"))
    except OSError as error:
        return f"    (no log: {error})"


def cache_folder() -> Path:
    """Return the folder for downloads that all checkouts of a user share."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sdp-facade"


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock between processes; the kernel releases it at the latest when this process ends.

    Raises
    ------
    InfraError
        The lock's file cannot be created.
    """
    file = _lock_file(path)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if on_wait is not None:
                    on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            # The previous holder may have removed the file: then others lock a new one.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
            file.close()
            file = _lock_file(path)
        yield
    finally:
        file.close()


def _lock_file(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise InfraError(f"the lock {path} cannot be made: {error}") from error


def installed_once(name: str, install: Callable[[Path], None], report: Notify) -> Path:
    """Return the cached folder of a name, filled by `install` if it does not exist.

    `install` fills a temporary folder that is renamed at its end: the folder is either complete
    or absent, also after a crash. A second process waits for the first one.
    """
    folder = cache_folder() / name
    if folder.exists():
        return folder
    waiting = f"waiting for another process that installs {name}"
    with locked(folder.with_name(f"{name}.lock"), on_wait=lambda: report(waiting)):
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=folder.parent) as temporary:
            made = Path(temporary) / "new"
            made.mkdir()
            install(made)
            made.rename(folder)
    return folder
