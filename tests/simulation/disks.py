"""Disks of our own hosts: files that outlive a process, room that runs out, and a process that dies while it writes."""

import errno
import io
import os
from collections import defaultdict

from tests.simulation.scheduler import Killed, Process


class Disk:
    """The disk of one host, in memory."""

    def __init__(self) -> None:
        self.is_full = False
        self.kills_in_a_write = False
        """Whether the next write is cut short, as its process is killed."""
        self.files: dict[str, bytearray] = defaultdict(bytearray)

    def written(self, process: Process, content: bytes) -> int:
        """Return how much of what takes new room is written; all, unless it fails."""
        process.require_alive()
        random = process.scheduler.random
        if self.kills_in_a_write or self.is_full:
            return random.randrange(len(content) + 1) if self.kills_in_a_write else random.randrange(len(content))
        return len(content)

    def judge(self, process: Process) -> None:
        """Fail after a write that was cut short."""
        if self.kills_in_a_write:
            self.kills_in_a_write = False
            process.scheduler.at(0.0, process.parts["kill"])
            raise Killed
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class DiskFolder:
    """A folder on a disk as a process has it; see `facade.sdk.producer.folder.Folder`."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk, self._process = disk, process

    def __str__(self) -> str:
        return f"the disk of {self._process.name}"

    def names(self) -> list[str]:
        return sorted(self._disk.files)

    def read(self, name: str, begin: int = 0, size: int | None = None) -> bytes:
        """Return so many bytes of a file, or all that are there."""
        if name not in self._disk.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return bytes(self._disk.files[name][begin : None if size is None else begin + size])

    def write(self, name: str, begin: int, content: bytes) -> None:
        """Let a file have this content at a place: what is there already can be written over on any disk."""
        self._process.require_alive()
        file, end = self._disk.files[name], begin + len(content)
        if end > len(file):
            count = self._disk.written(self._process, content)
            file[begin : begin + count] = content[:count]
            self._disk.judge(self._process)
        else:
            file[begin:end] = content
            del file[end:]

    def remove(self, name: str) -> None:
        self._process.require_alive()
        self._disk.files.pop(name, None)

    def close(self) -> None:
        pass


class TemporaryFile(io.FileIO):
    """A file without a name on a disk, which goes with its process; its bytes are in memory of this one."""

    def __init__(self, disk: Disk, process: Process) -> None:
        super().__init__(os.memfd_create("simulated"), "r+")
        self._disk, self._process = disk, process

    def __del__(self) -> None:
        self.close()  # its process was killed

    def write(self, content: bytes) -> int:  # type: ignore[override]
        whole = bytes(content)
        super().write(whole[: self._disk.written(self._process, whole)])
        self._disk.judge(self._process)
        return len(whole)
