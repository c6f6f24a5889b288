"""What happened in a span of time, and execution blocks: from the archive, and from the devices for the newest part.

An archive has a record minutes after it was written, and a page may have no archive at all. So what devices and this
server remember is added for spans that end within the last quarter of an hour; it counts where both know the same.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from facade.kernel.clock import DAY, MINUTE, Clock, Time, as_seconds
from facade.kernel.errors import ConfigError, FacadeError
from facade.sdp.durations import parse_time
from sdp_facade_clients.web.feed import SPANS, Feed
from sdp_facade_clients.web.site import MASTER, Site

if TYPE_CHECKING:  # its libraries are of another extra
    from facade.archive.timeline import TimelineArchive

LONGEST: Final = 8 * DAY
"""Longest span of one question."""
_RECENT: Final = 15 * MINUTE
"""Time after which the archive knows all."""
SUBARRAY: Final = "SdpSubarray"
_DAYS: Final = ("1", "7", "30")
_ASSIGN, _ASSIGNED_BEFORE = "AssignResources", 600.0
"""The command before an execution block, and the longest time between them [s]."""
_KINDS: Final = ("commands", "alarms", "tables", "blocks", "gaps")


class Timelines:
    """Answers for any thread; a device or an archive that does not answer is named in `unknown`."""

    def __init__(self, feed: Feed, site: Site, clock: Clock, archive: "TimelineArchive | None") -> None:
        self._feed, self._site, self._clock, self._archive = feed, site, clock, archive

    def between(self, device: str, begin: str, end: str) -> dict[str, Any]:
        """Return what happened between two times, as of `facade.archive.timeline.TimelineArchive.between`."""
        first, last = parse_time(begin, "begin"), parse_time(end, "end")
        if not first < last <= first + LONGEST:
            span = f"{as_seconds(last - first):.12g} s"
            raise ConfigError(f"begin and end: expected an end up to {LONGEST // DAY} days after the begin, got {span}")
        if device and device not in self._site.kinds():
            raise ConfigError(f"device: expected one of the deployment, got {device!r:.100}")
        return self._between(device, first, last)

    def _between(self, device: str, first: Time, last: Time) -> dict[str, Any]:
        found: dict[str, Any] = {"obs_states": {}, "unknown": {}} | {kind: [] for kind in _KINDS}
        if self._archive is not None:
            found = self._archive.between(first, last, device)
        if self._archive is None or last > self._clock.now_us() - _RECENT:
            self._add_live(found, as_seconds(first), as_seconds(last))
        for kind in ("commands", "alarms", "tables", "blocks"):
            found[kind] = sorted(found[kind], key=_when)
        return found | {"begin": as_seconds(first), "end": as_seconds(last)}

    def _add_live(self, found: dict[str, Any], begin: float, end: float) -> None:
        """Add what the devices and this server remember."""
        commands = {(one["device"], one["id"]): one for one in found["commands"]}
        for device in self._devices(SUBARRAY, MASTER):
            try:
                given = self._site.commands(device)
            except FacadeError as error:
                found["unknown"]["commands"] = f"{device} does not answer: {error}"
                continue
            commands |= {(device, one["id"]): one | {"device": device} for one in given if begin <= _when(one) <= end}
        found["commands"] = [*commands.values()]
        told = {_alarm(one): one for one in found["alarms"]}
        for entry in self._feed.alerts():
            if entry.alert and begin <= entry.time <= end:
                names = ("condition", "source", "severity", "state", "text")
                one = {"time": entry.time} | {name: entry.alert.get(name, "") for name in names}
                told.setdefault(_alarm(one), one)
        found["alarms"] = [*told.values()]
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
            before = [one for one in known.get(device, ()) if not steps or one[0] < steps[0][0]]
            found[device] = _changes([*before, *steps])
        return found

    def execution_blocks(self, days: str) -> list[dict[str, Any]]:
        """Return the execution blocks of the last days, the newest first."""
        if (days or _DAYS[1]) not in _DAYS:
            raise ConfigError(f"days: expected one of {', '.join(_DAYS)}, got {days!r:.50}")
        now = self._clock.now_us()
        found = {} if self._archive is None else {
            one.id: one._asdict() for one in self._archive.execution_blocks(now - int(days or _DAYS[1]) * DAY, now)
        }  # fmt: skip
        for one in self._current():
            found.setdefault(one["id"], one)
        return sorted(found.values(), key=lambda one: one["begin"], reverse=True)

    def _current(self) -> list[dict[str, Any]]:
        """Return the execution block that each subarray has now."""
        found = []
        for device in self._devices(SUBARRAY):
            with suppress(FacadeError):
                seen = self._site.read(device, "ebID")
                if isinstance(seen["value"], str) and seen["value"] and seen["quality"] != "INVALID":
                    given = [_when(one) for one in self._site.commands(device) if one["name"] == _ASSIGN]
                    known = [one for one in given if seen["time"] - _ASSIGNED_BEFORE <= one <= seen["time"]]
                    begin = max(known, default=seen["time"])
                    found.append({"id": seen["value"], "device": device, "begin": begin, "end": None})
        return found

    def execution_block(self, id: str) -> dict[str, Any]:
        """Return an execution block with what happened in it, between its first and its last record."""
        now = self._clock.now_us()
        block = next((one for one in self._current() if one["id"] == id), None)
        if self._archive is not None and (whole := self._archive.execution_block(id, now)) is not None:
            block = whole._asdict()
        if block is None:
            known = ", ".join(one["id"] for one in self.execution_blocks(_DAYS[-1])[:10])
            raise ConfigError(f"id: expected an execution block of the last 30 days, got {id!r:.100}; known: {known}")
        first, last = (Time(round(one * 1e6)) for one in (block["begin"], block["end"] or as_seconds(now) + 1))
        found = self._between(block["device"], first, min(last, first + LONGEST))
        number = block["device"].rpartition("/")[2]
        return found | {
            "id": id,
            "device": block["device"],
            "is_open": block["end"] is None,
            "commands": [one for one in found["commands"] if one["device"] == block["device"]],
            "obs_states": {block["device"]: found["obs_states"].get(block["device"], [])},
            "tables": [one for one in found["tables"] if f"subarray/{number}/" in f"{one['product']}/"],
            "blocks": [one for one in found["blocks"] if one["eb_id"] == id],
        }

    def _devices(self, *kinds: str) -> list[str]:
        return sorted(device for device, kind in self._site.kinds().items() if kind in kinds)


def _when(one: Mapping[str, Any]) -> float:
    return one["time"] if "time" in one else as_seconds(parse_time(one["submitted_time"], "submitted_time"))


def _alarm(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return one["condition"], one["source"], one["state"], round(one["time"], 3)


def _changes(steps: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[*one] for at, one in enumerate(steps) if not at or steps[at - 1][1] != one[1]]
