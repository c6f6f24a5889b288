"""Displays that people make on the page *Explore* and that all browsers share: files, with versions.

The objects of Open MCT (a plot, a layout, a folder) are kept one by one. Each has a folder whose name is the digest of
its id, so no text of a browser becomes a path. Each version is a file with a number, which is written whole and never
changed. A change names the version that it is based on. If that is not the newest, or another server has just written
the next number, the change is refused, because the person has not seen what it would replace. Only folders of Open MCT
are merged: two people who each add a display to the same folder do not contradict each other.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from facade.kernel.clock import Clock, Time, as_seconds, utc_seconds
from facade.kernel.errors import ConfigError, InfraError
from facade.sdp.files import sync_folder, write_new
from sdp_facade_clients.web.doors import Person, RequestRefused

MOST: Final = 2000
"""Most objects; a display is one or several."""
VERSIONS: Final = 20
"""Newest versions of an object that are kept."""
LARGEST: Final = 100_000
"""Largest object [bytes of JSON]."""
DEEPEST: Final = 20
"""Most objects and lists within each other."""
_LONGEST_NAME: Final = 200
ROOT: Final = "root"
"""The folder in which all others are."""
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_FILE: Final = re.compile(r"([0-9]{8})\.json")
_encode = msgspec.json.Encoder().encode


class _Version(msgspec.Struct, frozen=True):
    id: str
    number: int
    person: str
    time: Time
    model: dict[str, Any]


class Displays:
    """The objects of a folder; for any thread."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--displays: expected a folder, got {error}") from error

    def read(self, id: str, number: str = "") -> dict[str, Any]:
        """Return the newest version of an object, or the one with a number; version 0: there is none."""
        numbers = self._numbers(id)
        if number and number not in map(str, numbers):
            known = ", ".join(map(str, numbers)) or "none"
            raise ConfigError(f"version: expected one that is kept ({known}), got {number!r:.50}")
        if not numbers:
            return {"id": id, "version": 0, "person": "", "time": None, "model": None}
        return _told(self._version(id, int(number or numbers[-1])))

    def versions(self, id: str) -> list[dict[str, Any]]:
        """Return number, person, time and name of each version of an object that is kept; the newest first."""
        found = [_told(self._version(id, number)) for number in reversed(self._numbers(id))]
        return [{"name": one.pop("model")["name"]} | one for one in found]

    def save(self, person: Person, id: str, base: int, model: dict[str, Any]) -> dict[str, Any]:
        """Keep a new version of an object that is based on another one, 0: on none; return it.

        Raises
        ------
        RequestRefused
            The object has a newer version, or the folder is full.
        """
        numbers = self._numbers(id)
        _check(model)
        newest = self._version(id, numbers[-1]) if numbers else None
        if newest is None and len(list(self._folder.iterdir())) >= MOST:
            raise RequestRefused(
                409, f"expected at most {MOST} objects of displays, and {MOST} are kept; nothing was done"
            )
        if newest is not None and newest.number != base:
            before = self._version(id, base).model if base in numbers else {} if base == 0 else None
            merged = None if before is None else _merged(before, newest.model, model)
            if merged is None:
                raise _conflict(newest)
            model = merged
        if newest is not None and _is_same(newest.model, model):
            return _told(newest)
        version = _Version(id, newest.number + 1 if newest else 1, person.name, self._clock.now_us(), model)
        try:
            self._write(version)
        except FileExistsError:
            raise _conflict(self._version(id, version.number)) from None
        for number in [*numbers, version.number][:-VERSIONS]:
            self._path(id, number).unlink(missing_ok=True)
        return _told(version)

    def _write(self, version: _Version) -> None:
        path = self._path(version.id, version.number)
        if not path.parent.exists():
            path.parent.mkdir(exist_ok=True)
            sync_folder(self._folder)
        write_new(path, _encode(version))
        sync_folder(path.parent)

    def _path(self, id: str, number: int) -> Path:
        if not _ID.fullmatch(id):
            raise ConfigError(f"id: expected 1 to 64 letters, digits and hyphens, got {id!r:.100}")
        return self._folder / hashlib.sha256(id.encode()).hexdigest()[:32] / f"{number:08}.json"

    def _numbers(self, id: str) -> Sequence[int]:
        """Return the numbers of the versions of an object; the oldest first."""
        try:
            names = os.listdir(self._path(id, 0).parent)
        except FileNotFoundError:  # any other error does not mean that there is none
            return []
        return sorted(int(found[1]) for found in map(_FILE.fullmatch, names) if found)

    def _version(self, id: str, number: int) -> _Version:
        path = self._path(id, number)
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Version)
        except msgspec.MsgspecError as error:
            what = f"{path.parent.name}/{path.name}: expected version {number} of display {id}, got {error}"
            raise InfraError(f"{what}; restore the file, or remove it to have the version before") from error


def _told(one: _Version) -> dict[str, Any]:
    return {"id": one.id, "version": one.number, "person": one.person, "time": as_seconds(one.time), "model": one.model}


def _check(model: dict[str, Any]) -> None:
    """Refuse a model that no object of Open MCT has, or that is too large."""
    level: list[Any] = [model]
    for _ in range(DEEPEST):
        if any("__proto__" in one for one in level if isinstance(one, dict)):
            raise ConfigError("model: expected no field __proto__; nothing was done")
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    if level:
        raise ConfigError(f"model: expected at most {DEEPEST} objects and lists within each other; nothing was done")
    if (size := len(_encode(model))) > LARGEST:
        raise ConfigError(f"model: expected at most {LARGEST} bytes, got {size}; nothing was done")
    for name in ("name", "type"):
        if not (isinstance(text := model.get(name), str) and 0 < len(text) <= _LONGEST_NAME):
            raise ConfigError(f"model: expected a {name} of 1 to {_LONGEST_NAME} characters; nothing was done")
    if not isinstance(model.get("composition", []), list):
        raise ConfigError("model: expected a list of members in composition; nothing was done")


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two models are alike but for their times and people."""
    times = dict.fromkeys(("created", "createdBy", "modified", "modifiedBy", "persisted"))
    return one | times == other | times


def _merged(before: dict[str, Any], theirs: dict[str, Any], mine: dict[str, Any]) -> dict[str, Any] | None:
    """Return a folder with the members that two people have added and removed; None: they changed something else."""
    base, newest, own = ([*one.get("composition", ())] for one in (before, theirs, mine))
    alike = {"composition": None}
    if theirs.get("type") != "folder" or not _is_same(theirs | alike, mine | alike):
        return None
    stay = [one for one in newest if one in own or one not in base]
    return mine | {"composition": stay + [one for one in own if one not in newest and one not in base]}


def _conflict(newest: _Version) -> RequestRefused:
    what = f"{newest.model['name']!r:.100} was changed by {newest.person} at {utc_seconds(newest.time)}"
    return RequestRefused(409, f"{what} (version {newest.number}) after you opened it; nothing was overwritten")
