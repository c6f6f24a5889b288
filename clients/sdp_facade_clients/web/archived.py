"""Answers of the operator's page from an archive: one second of the past, and thinned histories."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np

from facade.archive.differences import compare
from facade.archive.history import HistoryArchive, Point, unit_in
from facade.archive.moment import COMMANDS_BACK, MomentArchive
from facade.archive.night.page import render
from facade.archive.night.report import read_night
from facade.archive.post_mortem import AFTER, BEFORE, PostMortem, digest_of, post_mortems
from facade.archive.stores import Store, open_store
from facade.archive.thinned import thin
from facade.archive.timeline import TimelineArchive
from facade.flows.telemetry.plan import FIGURES
from facade.kernel.clock import DAY, FOREVER, SECOND, Clock, as_duration, as_seconds, utc_text
from facade.kernel.config import without_secrets
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import Icd
from facade.sdp.durations import parse_time
from sdp_facade_clients.web import openapi as bounds
from sdp_facade_clients.web.following import MOST_DEVICES
from sdp_facade_clients.web.site import MASTER, Site

_LONGEST: Final = bounds.LONGEST_DAYS * DAY
_LONGEST_REPORT: Final = DAY
"""Longest execution block whose report is made while a person waits."""
_LISTED: Final = 10.0
"""[s]"""
_MOST_OPEN: Final = 8
"""Post-mortems that are open."""
_NODES: Final = "SdpIngestNode"
NEVER_KNOWN: Final = {
    "nodes": "the silence of each node is not archived",
    "waiting": "which commands wait for a second person is shown as their status only",
    "dead-letters": "dead letters are not read from the archive",
    "acts": "who did what is not read from the archive; choose now, which goes back 7 days",
    "read": "the archive has no values of attributes that send no events, such as images",
}
"""What no archive answers for a second of the past, by question of the page."""


class _ListedStore:
    """A store whose files are listed once in `_LISTED` only: a month has thousands, and new ones come in minutes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._names: dict[str, tuple[float, list[str]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __str__(self) -> str:
        return str(self._store)

    def names(self, topic: str = "*") -> list[str]:
        at, names = self._names.get(topic, (-math.inf, []))
        if (now := self._clock.monotonic()) - at > _LISTED:
            names = self._store.names(topic)
            self._names[topic] = now, names
        return names


class ArchivedAnswers:
    """Answers for any thread; each method may raise `ArchiveError` or `ConfigError`."""

    def __init__(
        self, store: Store, icd: Icd, site: Site, clock: Clock, rack_size: int, post_mortems: str = ""
    ) -> None:
        self._place = post_mortems
        self._of = lru_cache(_MOST_OPEN)(lambda name: ArchivedAnswers(open_store(name), icd, site, clock, rack_size))
        listed = cast(Store, _ListedStore(store, clock))
        self._store, self._clock, self._rack_size = listed, clock, rack_size
        self._history, self._icd, self._site = HistoryArchive(listed), icd, site
        self._moments = MomentArchive(listed, self._history, icd, rack_size, clock)
        self.timeline = TimelineArchive(listed, self._history, self._moments)

    def of(self, post_mortem: str) -> "ArchivedAnswers":
        """Return the answers of a post-mortem by its name; empty: of the archive."""
        if not post_mortem:
            return self
        if not any(one.name == post_mortem for one in self._post_mortems()):
            raise ConfigError(f"post_mortem: expected one that is kept, got {post_mortem!r:.100}; the oldest make room")
        return self._of(f"{self._place}/{post_mortem}")

    def post_mortems(self, condition: str, source: str, raised_at: str) -> list[dict[str, Any]]:
        """Return names, times and titles of the post-mortems of an alarm, or, without one, of all; the newest first.

        Those of other alarms whose minutes have the time at which it was raised are among them, as in a flood of alarms
        not each has its own.
        """
        alarm = digest_of(condition, source) if condition else ""
        raised = parse_time(raised_at, "raised_at") if raised_at else FOREVER
        found = [
            one
            for one in self._post_mortems()
            if not condition or one.alarm == alarm or one.at - BEFORE <= raised <= one.at + AFTER
        ]
        return [{"name": one.name, "time": as_seconds(one.at), "title": one.title} for one in reversed(found)]

    def _post_mortems(self) -> list[PostMortem]:
        return post_mortems(self._place) if self._place else []

    def at(self, time: str, device: str, step: str = "", count: str = "") -> dict[str, Any]:
        """Return what the devices showed at a second, by default the newest of the archive, and changes in later steps.

        Of a class with many devices only State is given, and all of the one device that is asked for.
        """
        begin, end = self._moments.extent()
        first = parse_time(time, "time") if time else end
        number = _number(count, 1, "count", bounds.MOST_STEPS)
        length = _number(step, 1, "step", bounds.LONGEST_STEPS // number)
        kinds = self._site.kinds()
        sizes = Counter(kinds.values())
        thinned = {name for name, kind in kinds.items() if sizes[kind] > MOST_DEVICES and name != device}
        values: dict[str, dict[str, Any]] = {}
        steps, before = list[dict[str, Any]](), dict[str, Any]()
        for found in self._moments.steps(first, length * SECOND, number):
            changed: dict[str, dict[str, Any]] = found["values"]
            for name, some in changed.items():
                own = values.pop(name, {}) | some
                if own := {attribute: one for attribute, one in own.items() if one is not None}:
                    values[name] = own
            found |= {"judgement": None, "unknown": NEVER_KNOWN | found["unknown"]}
            if any(kinds.get(name) == MASTER for name in values):
                found["judgement"] = self._site.judged_of(values, found["alarms"])
            else:
                found["unknown"]["judgement"] = f"the archive has no values of {MASTER} of that second"
            shown = {name: some for name, some in changed.items() if name not in thinned}
            shown |= {name: {"State": changed[name]["State"]} for name in thinned if "State" in changed.get(name, ())}
            told = {name: one for name, one in found.items() if name not in before or one != before[name]}
            steps.append(told | {"values": shown, "nodes": _figures(changed, kinds)})
            before = found
        return steps[0] | {
            "begin": as_seconds(begin),
            "end": as_seconds(end),
            "nodes": _rows(steps[0]["nodes"], kinds),
            "commands_back": as_seconds(COMMANDS_BACK),
            "steps": steps[1:],
        }

    def differences(self, time: str, against: str) -> dict[str, Any]:
        """Return what differs between two seconds, see `facade.archive.differences.compare`; the farthest first."""
        _, end = self._moments.extent()
        found = compare(self.timeline, self._icd, parse_time(time, "time") if time else end, against)

        def told(one: Point | None) -> Any:
            return None if one is None else {"value": one[1].value, "quality": one[1].quality}

        rows = []
        for one in found.found[: bounds.MOST_DIFFERENCES]:
            device, _, attribute = one.name.rpartition("/")
            both = {"before": told(one.before), "after": told(one.after)}
            rows.append({"device": device, "attribute": attribute, "unit": one.unit, **both, "moved": one.moved})
        times = {"time": as_seconds(found.time), "against": as_seconds(found.against), "what": found.what}
        return times | {"compared": found.compared, "different": len(found.found), "rows": rows}

    def report(self, id: str) -> bytes:
        """Return the report of an execution block as HTML, as `sdp-facade report --eb` writes it."""
        now = self._clock.now_us()
        night = self.timeline.night(id, now)
        if night.end_us - night.begin_us > _LONGEST_REPORT:
            length = f"{night.seconds / 3600:.0f} h"
            what = f"expected an execution block of up to 24 h for a report on the page, got {length}"
            raise ConfigError(f"{what}; write it by: sdp-facade report FOLDER --eb {id}")
        made = read_night(self._store, self._icd, night, self._rack_size)
        return render(made, without_secrets(f"{self._store}"), now).encode()

    def history(self, device: str, attributes: str, begin: str, end: str, points: str) -> dict[str, Any]:
        """Return the thinned histories of some attributes, whose names are separated by commas."""
        names = [*dict.fromkeys(filter(None, attributes.split(",")))]
        if not device or not 1 <= len(names) <= bounds.MOST_ATTRIBUTES:
            got = f"{device or 'no device'} with {len(names)} attributes"
            raise ConfigError(f"expected a device, and 1 to {bounds.MOST_ATTRIBUTES} times attribute, got {got}")
        count = _number(points, bounds.POINTS, "points", bounds.MOST_POINTS)
        first, last = parse_time(begin, "begin"), parse_time(end, "end")
        if not as_duration(count / 1e6) <= last - first <= _LONGEST:
            span = f"{as_seconds(last - first):.12g} s"
            what = f"expected an end up to {as_seconds(_LONGEST):.0f} s after the begin, and 1 us for each point"
            raise ConfigError(f"begin and end: {what}, got {span} for {count} points")
        series = []
        for name in names:
            found = thin(self._history, whole := f"{device}/{name}", first, last, count)
            if not any(found.quality):
                self._site.require(device, name)  # nothing was recorded: it may be a mistake
            times = np.datetime_as_string(np.array(found.time, "M8[us]"), "ms").tolist()  # of all bins at once
            rows = zip(times, *found[1:], strict=True)
            told = [dict(zip(found._fields, (f"{time}+00:00", *row), strict=True)) for time, *row in rows]
            series.append({"device": device, "attribute": name, "unit": unit_in(self._icd, whole), "rows": told})
        return {
            "begin": utc_text(first), "end": utc_text(last), "bin": as_seconds(last - first) / count, "series": series,
        }  # fmt: skip


def _number(text: str, default: int, name: str, most: int) -> int:
    found = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0 if text else default
    if not 1 <= found <= most:
        raise ConfigError(f"{name}: expected 1 to {most}, got {text!r:.50}")
    return found


def _figures(values: Mapping[str, Mapping[str, Any]], kinds: Mapping[str, str]) -> dict[str, dict[int, float | None]]:
    """Return the figures of ingest nodes that are among some values, by the number of the node."""
    found: dict[str, dict[int, float | None]] = {}
    for name in [one for one in values if kinds.get(one) == _NODES]:
        for figure in FIGURES:
            if figure in values[name]:
                value, quality, *_ = values[name][figure] or (None, "INVALID")
                is_known = quality != "INVALID" and isinstance(value, int | float)
                found.setdefault(figure, {})[int(name.rpartition("/")[2])] = value if is_known else None
    return found


def _rows(figures: Mapping[str, Mapping[int, float | None]], kinds: Mapping[str, str]) -> dict[str, list[float | None]]:
    """Return the figures of all ingest nodes in the form of `Site.nodes`."""
    last = max((int(name.rpartition("/")[2]) for name, kind in kinds.items() if kind == _NODES), default=-1)
    return {
        figure: [*map(found.get, range(last + 1))]
        for figure, found in figures.items()
        if any(one is not None for one in found.values())
    }
