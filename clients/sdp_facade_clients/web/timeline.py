"""What happened in a span of time, and execution blocks: from the archive, and from the devices for the newest part.

An archive has a record minutes after it was written, and a page may have no archive at all. So what devices and this
server remember is added for spans that end within the last quarter of an hour. Of commands and of execution blocks, the
devices know the newer; of observing states, the archive knows the exact times, and the devices what came behind them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from facade.kernel.clock import DAY, MINUTE, Clock, Time, as_seconds
from facade.kernel.errors import ConfigError, FacadeError
from facade.sdp.device_state import NO_BLOCK
from facade.sdp.durations import parse_time
from sdp_facade_clients.web.feed import SPANS, Feed
from sdp_facade_clients.web.site import MASTER, Site

if TYPE_CHECKING:  # its libraries are of another extra
    from facade.archive.timeline import TimelineArchive, Wanted

LONGEST: Final = 8 * DAY
"""Longest span of one question."""
_RECENT: Final = 15 * MINUTE
"""Time after which the archive knows all."""
SUBARRAY: Final = "SdpSubarray"
_DAYS: Final = ("1", "7", "30")
_ASSIGN, _ASSIGNED_BEFORE = "AssignResources", 600.0
"""The command before an execution block, and the longest time between them [s]."""
_KINDS: Final = ("commands", "alarms", "tables", "blocks", "gaps")
_ARCHIVE: Final = "archive"
"""Name of the archive in `unknown`."""
_COMMANDS_KEPT: Final = 10.0
"""Time for which the commands of a device are not asked for again, by whatever browser [s]."""
_Found = TypeVar("_Found")
_Unknown = dict[str, str]


class Timelines:
    """Answers for any thread; a device or an archive that does not answer is named in `unknown`.

    Parameters
    ----------
    is_kept
        Whether the archive is a post-mortem, to which nothing of the devices is added.
    """

    def __init__(
        self, feed: Feed, site: Site, clock: Clock, archive: "TimelineArchive | None", *, is_kept: bool = False
    ) -> None:
        self._feed, self._site, self._clock, self._archive, self._is_kept = feed, site, clock, archive, is_kept
        self._told: dict[str, tuple[float, list[dict[str, Any]] | FacadeError]] = {}
        """By device: the time of the last question for its commands [monotonic s], and the answer or the failure."""

    def between(self, device: str, begin: str, end: str) -> dict[str, Any]:
        """Return what happened between two times, as of `facade.archive.timeline.TimelineArchive.between`."""
        first, last = parse_time(begin, "begin"), parse_time(end, "end")
        if not first < last <= first + LONGEST:
            span = f"{as_seconds(last - first):.12g} s"
            raise ConfigError(f"begin and end: expected an end up to {LONGEST // DAY} days after the begin, got {span}")
        if device and device not in self._site.kinds():
            raise ConfigError(f"device: expected one of the deployment, got {device!r:.100}")
        return self._between(device, first, last, {}, {})

    def _between(self, device: str, first: Time, last: Time, wanted: "Wanted", unknown: _Unknown) -> dict[str, Any]:
        found: dict[str, Any] = {"obs_states": {}, "unknown": {}} | {kind: [] for kind in _KINDS}
        found = self._archived(lambda archive: archive.between(first, last, device, wanted), found, unknown)
        found["unknown"] |= unknown
        if not self._is_kept and (self._archive is None or last > self._clock.now_us() - _RECENT):
            self._add_live(found, as_seconds(first), as_seconds(last))
        for kind in ("commands", "alarms", "tables", "blocks"):
            found[kind] = sorted(filter(wanted.get(kind), found[kind]), key=_when)
        return found | {"begin": as_seconds(first), "end": as_seconds(last)}

    def _archived(self, ask: Callable[["TimelineArchive"], _Found], otherwise: _Found, unknown: _Unknown) -> _Found:
        """Return an answer of the archive; without one, tell why in `unknown`: what the devices know stays."""
        if self._archive is not None:
            try:
                return ask(self._archive)
            except FacadeError as error:
                unknown[_ARCHIVE] = str(error)
        return otherwise

    def _commands(self, device: str) -> list[dict[str, Any]]:
        """Return the newest commands of a device; `FacadeError` if it does not answer, or has not a moment ago."""
        if device in self._feed.silent:
            raise FacadeError("its server is silent")
        at, told = self._told.get(device, (-math.inf, []))
        if (now := self._clock.monotonic()) - at >= _COMMANDS_KEPT:
            try:
                told = self._site.commands(device)
            except FacadeError as error:
                told = error
            self._told[device] = now, told
        if isinstance(told, FacadeError):
            raise told
        return told

    def _add_live(self, found: dict[str, Any], begin: float, end: float) -> None:
        """Add what the devices and this server remember."""
        commands = {(one["device"], one["id"]): one for one in found["commands"]}
        why = [found["unknown"]["commands"]] if "commands" in found["unknown"] else []
        for device in self._devices(SUBARRAY, MASTER):
            try:
                given = self._commands(device)
            except FacadeError as error:
                why.append(f"{device} does not answer: {error}")
                continue
            commands |= {(device, one["id"]): one | {"device": device} for one in given if begin <= _when(one) <= end}
        found["commands"] = [*commands.values()]
        if why:
            found["unknown"]["commands"] = "; ".join(why)
        told = {_alarm(one): one for one in found["alarms"]}
        for entry in self._feed.alerts():
            if entry.alert and entry.time <= end:
                names = ("condition", "source", "severity", "state", "text")
                one = {"time": entry.time} | {name: entry.alert.get(name, "") for name in names}
                told.setdefault(_alarm(one), one)
        found["alarms"] = [one for one in _without_repeats(told.values()) if _when(one) >= begin]
        found["obs_states"] = {**found["obs_states"], **self._obs_states(found["obs_states"], begin, end)}
        if self._archive is None:
            what = "this page has no archive; the devices tell only what they remember"
            found["unknown"] |= dict.fromkeys(("tables", "blocks"), what)

    def _obs_states(self, known: Mapping[str, Sequence[Any]], begin: float, end: float) -> dict[str, list[Any]]:
        labels = self._site.labels("ObsState")
        span = next((one for one in SPANS if as_seconds(self._clock.now_us()) - one <= begin), SPANS[-1])
        found = {}
        for device in self._devices(SUBARRAY):
            times, values = self._feed.trend(device, "obsState", span)
            steps = [
                (time, labels[int(value)])
                for time, value in zip(times, values, strict=True)
                if value is not None and 0 <= value < len(labels) and time <= end
            ]
            archived = known.get(device) or [(begin, state) for time, state in steps if time <= begin][-1:]
            since = archived[-1][0] if archived else begin
            found[device] = _changes([*archived, *(one for one in steps if one[0] > since)])
        return found

    def execution_blocks(self, days: str) -> dict[str, Any]:
        """Return the execution blocks of the last days, the newest first, and which entries are `unknown`."""
        if (days or _DAYS[1]) not in _DAYS:
            raise ConfigError(f"days: expected one of {', '.join(_DAYS)}, got {days!r:.50}")
        unknown: _Unknown = {}
        return {"blocks": self._execution_blocks(days or _DAYS[1], unknown), "unknown": unknown}

    def _execution_blocks(self, days: str, unknown: _Unknown) -> list[dict[str, Any]]:
        now = self._clock.now_us()
        found: list[dict[str, Any]] = self._archived(
            lambda archive: [one._asdict() for one in archive.execution_blocks(now - int(days) * DAY, now)], [], unknown
        )
        for one in self._current(unknown):
            newest = next((it for it in found if it["device"] == one["device"]), None)
            if newest and one["begin"] < (newest["end"] or newest["begin"]):
                continue  # the archive knows as much
            if newest and newest["end"] is None:
                if newest["id"] == one["id"]:
                    continue
                newest["end"] = one["begin"]  # in no file yet
            if one["id"]:
                found.append(one)
        return sorted(found, key=lambda one: one["begin"], reverse=True)

    def _current(self, unknown: _Unknown) -> list[dict[str, Any]]:
        """Return the execution block that each subarray has now; without an id, it has had none since its `begin`."""
        found = []
        for device in self._devices(SUBARRAY):
            try:
                given = self._commands(device)
                seen = self._site.read(device, "ebID")
            except FacadeError as error:
                unknown[device] = f"it does not answer: {error}"
                continue
            if isinstance(id := seen["value"], str) and seen["quality"] != "INVALID":
                times = [_when(one) for one in given if one["name"] == _ASSIGN and id not in NO_BLOCK]
                begin = max((one for one in times if 0 <= seen["time"] - one <= _ASSIGNED_BEFORE), default=seen["time"])
                found.append({"id": "" if id in NO_BLOCK else id, "device": device, "begin": begin, "end": None})
        return found

    def execution_block(self, id: str) -> dict[str, Any]:
        """Return an execution block with what happened in it, between its first and its last record."""
        now, unknown = self._clock.now_us(), _Unknown()
        listed = self._execution_blocks(_DAYS[-1], unknown)
        block = next((one for one in listed if one["id"] == id), None)
        if block is None:
            known = ", ".join([one["id"] for one in listed[:10]] + [*map(": ".join, unknown.items())])
            raise ConfigError(f"id: expected an execution block of the last 30 days, got {id!r:.100}; known: {known}")
        whole = self._archived(lambda archive: archive.execution_block(id, now), None, unknown)
        begin, end, device = block["begin"], block["end"], block["device"]
        if whole is not None and (end is not None or whole.end is None):  # otherwise the subarray has begun it again
            begin, end = whole.begin, end if end is None or whole.end is None else max(end, whole.end)
        first, last = (Time(round(one * 1e6)) for one in (begin, end or as_seconds(now) + 1))
        wanted: Wanted = {
            "commands": lambda one: one["device"] == device,
            "tables": lambda one: f"subarray/{device.rpartition('/')[2]}/" in f"{one['product']}/",
            "blocks": lambda one: one["eb_id"] == id,
        }
        found = self._between(device, first, min(last, first + LONGEST), wanted, unknown)
        states = {device: found["obs_states"].get(device, [])}
        return found | {"id": id, "device": device, "is_open": end is None, "obs_states": states}

    def _devices(self, *kinds: str) -> list[str]:
        return sorted(device for device, kind in self._site.kinds().items() if kind in kinds)


def _when(one: Mapping[str, Any]) -> float:
    return one["time"] if "time" in one else as_seconds(parse_time(one["submitted_time"], "submitted_time"))


def _alarm(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return one["condition"], one["source"], one["state"], round(one["time"], 3)


def _without_repeats(alarms: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of alarms that have another state than the one before: a source repeats its alerts."""
    found, known = [], dict[tuple[str, str], str]()
    for one in sorted(alarms, key=_when):
        alarm = one["condition"], one["source"]
        if known.get(alarm) != one["state"]:
            known[alarm] = one["state"]
            found.append(one)
    return found


def _changes(steps: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[*one] for at, one in enumerate(steps) if not at or steps[at - 1][1] != one[1]]
