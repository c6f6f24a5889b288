"""The location of an archive: a folder, or an object store supported by fsspec.

A file gets its name only when it is whole and durable, and a name is used once. So of two workers that write the same
partition, one fails with its next file, and no file is replaced.
"""

import contextlib
import importlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from facade.kernel.config import without_secrets
from facade.kernel.errors import ConfigError
from facade.sdp.files import sync_folder, write_new

_FILE = "file://"
_CONDITIONAL = ("s3", "s3a", "gs", "gcs", "memory")
"""Schemes whose put is atomic, and fails if the name exists; the last one is for tests."""


_LARGEST = 256_000_000
"""Size of a file that is read [bytes]; the worker has less in memory, before compression."""


class Store(Protocol):
    """Stores the files of an archive, by name."""

    def names(self, topic: str = "*") -> list[str]:
        """Return the names of the files, of one topic or of all; a missing archive has none.

        Raises
        ------
        OSError
            A folder cannot be listed.
        """

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""

    def open(self, name: str) -> BinaryIO:
        """Return a file to read parts of it."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file; it is durable when the call returns.

        Raises
        ------
        FileExistsError
            Another file has the name. A file with the same bytes comes from an earlier call whose end was not seen.
        OSError
            The file does not exist, or, if the store did not answer, may exist as a whole.
        """

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is no error."""

    def inner(self) -> list[str]:
        """Return the names of the archives within, if this is a folder of archives; raises as `names`."""

    def space(self) -> tuple[int, int] | None:
        """Return free space of the disk, and its size [bytes]; None: unknown, or there is no disk."""

    def tidy(self, topic: str, is_own: Callable[[int], bool]) -> None:
        """Remove the remains of a killed worker that wrote some partitions of the topic."""


def _names(topic: str, listed: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the names of the files, where `listed` gives the names in a folder.

    A glob would leave out a folder that cannot be listed. An archive that looks empty is written from its begin again.
    """
    topics = [f"topic={topic}"] if topic != "*" else [one for one in listed("") if one.startswith("topic=")]
    hours = [f"{one}/{hour}" for one in topics for hour in listed(one) if hour.startswith("hour=")]
    return [f"{hour}/{file}" for hour in hours for file in listed(hour) if file.endswith(".parquet")]


class FolderStore:
    """An archive in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable: dict[Path, Path] = {}
        """By the folder of a topic: the newest folder of an hour whose name this process has made durable."""

    def __str__(self) -> str:
        return f"{self._root}"

    def names(self, topic: str = "*") -> list[str]:
        """Return the names of the files; see `Store`."""
        return _names(topic, self._listed)

    def _listed(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._root / folder)
        except (FileNotFoundError, NotADirectoryError):  # retention may have removed it a moment ago
            return []

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        return self._file(name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        """Return a file to read parts of it."""
        return self._file(name).open("rb")

    def _file(self, name: str) -> Path:
        """Return the path of a file. A pipe, or a link to a device, has no end."""
        path = self._root / name
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError("expected a regular file")
        if found.st_size > _LARGEST:
            raise OSError(f"expected a file of at most {_LARGEST:,} bytes, got {found.st_size:,}")
        return path

    def write(self, name: str, content: bytes) -> None:
        """Write a temporary file, make it durable, and give it its name; see `Store`."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_new(path, content)
        except FileExistsError:
            if self.read(name) != content:
                raise
        # A folder that exists may come from a worker that was killed before it was durable, or from a remover.
        hour, topic = path.parent, path.parent.parent
        is_durable = self._durable.get(topic) == hour
        for folder in (hour,) if is_durable else (hour, topic, self._root):
            sync_folder(folder)
        self._durable[topic] = hour

    def remove(self, name: str) -> None:
        """Remove a file, and its folders if they are empty; see `Store`."""
        path = self._root / name
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            sync_folder(path.parent)  # of two files, the first one removed never comes back alone
        self._durable.pop(path.parent.parent, None)
        self._leave(path.parent)

    def _leave(self, hour: Path) -> None:
        """Remove the folder of an hour, and those around it, if they are empty."""
        with contextlib.suppress(OSError):
            for folder in (hour, hour.parent, self._root):
                folder.rmdir()

    def inner(self) -> list[str]:
        """Return the names of the archives within; see `Store`."""
        return [name for name in self._listed("") if (self._root / name).is_dir()]

    def space(self) -> tuple[int, int] | None:
        """Return free space of the disk, and its size; see `Store`."""
        try:
            usage = shutil.disk_usage(next(path for path in (self._root, *self._root.parents) if path.exists()))
        except OSError:
            return None
        return (usage.free, usage.total) if usage.total else None  # some network disks report nothing

    def tidy(self, topic: str, is_own: Callable[[int], bool]) -> None:
        """Remove incomplete files; see `Store`."""
        for part in self._root.glob(f"topic={topic}/hour=*/.*-*.part"):
            partition = part.name[1:].partition("-")[0]
            if partition.isdecimal() and is_own(int(partition)):
                part.unlink(missing_ok=True)
                self._leave(part.parent)


class _ObjectStore:
    """An archive in an object store: each file is one put, which fails if the name exists."""

    def __init__(self, url: str) -> None:
        try:
            fsspec = importlib.import_module("fsspec")
            self._system, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:  # no fsspec, no package for the scheme, or no such scheme
            what = f"cannot be opened: {error!s:.200}; pip install 'sdp-tango-facade[objects]' and the store's package"
            raise ConfigError(f"{without_secrets(url)}: {what}") from error
        self._root, self._place = root.rstrip("/"), without_secrets(url)

    def __str__(self) -> str:
        return self._place

    def names(self, topic: str = "*") -> list[str]:
        self._system.invalidate_cache()
        return _names(topic, self._listed)

    def _listed(self, folder: str) -> list[str]:
        place = f"{self._root}/{folder}".rstrip("/")
        try:
            found = [one.rstrip("/") for one in self._ask("ls", place, detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [one.rpartition("/")[2] for one in found if one != place]  # a store may list an object as its content

    def read(self, name: str) -> bytes:
        content: bytes = self._ask("cat_file", f"{self._root}/{name}")
        return content

    def open(self, name: str) -> BinaryIO:
        file: BinaryIO = self._ask("open", f"{self._root}/{name}", "rb")
        return file

    def write(self, name: str, content: bytes) -> None:
        try:
            self._ask("pipe_file", f"{self._root}/{name}", content, mode="create")
        except FileExistsError:
            if self.read(name) != content:
                raise

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._ask("rm_file", f"{self._root}/{name}")

    def inner(self) -> list[str]:
        self._system.invalidate_cache()
        return self._listed("")

    def space(self) -> None:
        """Return None: an object store has no limit."""

    def tidy(self, topic: str, is_own: Callable[[int], bool]) -> None:
        """Do nothing: an incomplete put leaves nothing."""

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._system, method)(*arguments, **options)
        except OSError:
            raise
        except Exception as error:  # any error of a library; its text may contain a key
            raise OSError(f"the store does not answer as expected: {type(error).__name__}") from error


def open_store(place: str) -> Store:
    """Return the archive in a folder or at a URL."""
    scheme, is_url, _ = place.partition("://")
    if not is_url or place.startswith(_FILE):
        root = Path(place.removeprefix(_FILE))
        if root.exists() and not root.is_dir():
            raise ConfigError(f"{root}: expected a folder, got a file")
        return FolderStore(root)
    if scheme not in _CONDITIONAL:
        known = ", ".join(_CONDITIONAL[:-1])
        raise ConfigError(f"{without_secrets(place)}: expected a folder, or a store with conditional puts ({known})")
    return _ObjectStore(place)
