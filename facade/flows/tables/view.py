"""What SdpCalibration shows: the newest solution of its subarray, and what is under way."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from facade.bus.port import BusHealth
from facade.flows.tables.flow import Complete, Pointing, Solution, TablesFlow, describe, location, products_of
from facade.icd.model import DeviceClass
from facade.reading import Changes, Image, Quality, Value, judge
from facade.runtime.flow import DeviceReading

_POINTING = "pointing_cal_"
_ALWAYS = frozenset({"age", "assembling", "tablesComplete", "lastFailure", "connected", "versionId", "State", "Status"})
"""What is no part of a solution, and does not get old with it."""
_GAP = 0.2
"""Least time between two looks [s]."""


class CalibrationView:
    """A view: the tables of the products ``subarray/NN/...``; see `facade.runtime.flow.View`.

    Parameters
    ----------
    known
        Whether the topic has been read as far as it went at the start.
    """

    def __init__(
        self,
        device: str,
        device_class: DeviceClass,
        flow: TablesFlow,
        health: BusHealth,
        *,
        known: Callable[[], bool],
        version: str,
    ) -> None:
        self._device = device
        self._limits = {one.name: one.limits for one in device_class.attributes}
        self._flow = flow
        self._health = health
        self._known = known
        self._version = version
        self.prefix = products_of(device)
        """How the names of its products begin."""
        self._values: dict[str, Value] = {}
        self._changes = Changes()
        self._looked_at = 0.0
        self._seen = -1
        """As many changes of the flow."""
        self._solution: Complete | None = None
        self._strange: list[str] = []
        """Dishes whose offsets have come and cannot be shown."""

    def readings(self, now: float) -> Iterator[DeviceReading]:
        """Return all that is to be shown; what has not changed is filtered out later."""
        if 0.0 <= now - self._looked_at < _GAP:
            return
        self._looked_at = now
        values: dict[str, Value] = {"connected": self._health.connected, "versionId": self._version}
        if self._known():
            values |= self._tables()
            if self._solution is not None:
                values["age"] = round(max(0.0, now - self._solution.table.time / 1e6), 1)
        self._values |= values | self._state(now)
        expired = self._is_expired(now)
        for name, value in self._values.items():
            yield (
                self._device,
                name,
                self._changes.reading(name, value, now, self._quality(name, value, expired=expired)),
            )

    def _quality(self, name: str, value: Value, *, expired: bool) -> Quality:
        quality = judge(value, self._limits.get(name))
        ages = name not in _ALWAYS and not name.startswith(_POINTING)
        if value is math.nan or (ages and self._solution is None):
            return Quality.INVALID  # the table does not say, or is not there any more
        return Quality.WARNING if expired and ages and quality is Quality.VALID else quality

    def _is_expired(self, now: float) -> bool:
        until = None if self._solution is None else self._solution.summary.valid_until
        return until is not None and until < now * 1e6

    def _tables(self) -> dict[str, Value]:
        """Look at the tables, if any has changed."""
        if self._seen == self._flow.changes:
            return {}
        self._seen, self._solution = self._flow.changes, None
        mine = [one for one in self._flow.complete.values() if one.table.product.startswith(self.prefix)]
        mine.sort(key=lambda one: one.table.time)
        values: dict[str, Value] = {"tablesComplete": len(mine)}
        under_way = (one for one in self._flow.assembling.values() if one.product.startswith(self.prefix))
        values["assembling"] = tuple(_text(describe(one)) for one in under_way)
        failed = [one for one in self._flow.failed.values() if one.product.startswith(self.prefix)]
        values["lastFailure"] = _text(describe(max(failed, key=lambda one: one.time))) if failed else ""
        for one in mine:
            if isinstance(one.summary, Solution):
                self._solution = one
            elif isinstance(one.summary, Pointing):
                values |= self._pointing(one.summary)
        if self._solution is not None:
            values |= _solution(self._solution.table, self._solution.summary)
        return values

    def _pointing(self, summary: Pointing) -> dict[str, Value]:
        offsets = {f"{_POINTING}{dish}": three for dish, three in summary.pointing.items()}
        self._strange = sorted(name.removeprefix(_POINTING) for name in offsets.keys() - self._limits.keys())
        return {name: three for name, three in offsets.items() if name in self._limits}

    def _state(self, now: float) -> dict[str, Value]:
        if not self._known():
            error = self._health.last_error or "none yet"
            return {"State": "UNKNOWN", "Status": f"The tables were not read from the bus yet; last error: {error}."}
        expired = self._is_expired(now)
        state = "ALARM" if expired else "ON"
        lines = [f"The device is in {state} state."]
        if self._solution is None:
            lines.append("No solution has come yet.")
        elif expired:
            lines.append(f"The solution {self._solution.table.table} is no longer valid, and no newer one has come.")
        if self._strange:
            lines.append(f"Pointing offsets of dishes that the ICD does not have: {', '.join(self._strange[:8])}.")
        if not self._health.connected:
            lines.append(f"No Kafka broker reachable; last error: {self._health.last_error or 'none yet'}.")
        return {"State": state, "Status": "\n".join(lines)}


def _solution(table: Any, summary: Solution) -> dict[str, Value]:
    return {
        "solutionId": summary.solution_id or table.table,
        "product": table.product,
        "kind": table.kind,
        "sourceModel": summary.source_model,
        "validFrom": _seconds(summary.valid_from),
        "validUntil": _seconds(summary.valid_until),
        "antennas": tuple(summary.antennas),
        "channels": summary.channels,
        "polarisations": tuple(summary.polarisations),
        "flaggedFraction": summary.flagged_fraction,
        "snr": _number(summary.snr),
        "gainAmplitude": _image(summary.amplitude),
        "gainPhase": _image(summary.phase),
        "channelFrequencies": tuple(summary.channel_frequencies),
        "antennaAmplitude": _numbers(summary.antenna_amplitude),
        "antennaPhaseRms": _numbers(summary.antenna_phase_rms),
        "antennaFlagged": tuple(summary.antenna_flagged),
        "digest": table.sha256,
        "location": _text(location(table)),
        "size": table.size,
        "transferTime": (table.time - table.sent_at) / 1e6,
    }


def _seconds(time_us: int | None) -> float:
    return math.nan if time_us is None else time_us / 1e6


def _number(value: float | None) -> float:
    # The same object each time: two readings with it are equal then, though it is not equal to itself.
    return math.nan if value is None else value


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(map(_number, values))


def _image(rows: Sequence[Sequence[float | None]]) -> Image:
    return tuple(map(_numbers, rows))


def _text(content: Mapping[str, Any]) -> str:
    return msgspec.json.encode(content).decode()
