"""What ObsWeather shows: exact totals of all readings, and the newest window over all stations.

The worker (`observatory.weather_worker`) writes partial sums, and by which time each partition is read. A window is
closed, and shown, when all partitions are read to its end and the allowed disorder after it. Totals are in the snapshot
together with the offsets that they cover, so they are the same after any restart.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from facade.kernel.bus.offsets import CountedOffsets, Gap, Overlap
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, SECOND, Time, as_duration
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import USED, Outcome, RecordRejected, Unused
from facade.kernel.reading import Quality, Reading, judge
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import DeviceReading, Flow, Missing
from facade.kernel.windows.frame import FieldArrays, Frame, Runs
from facade.kernel.windows.newest import Rule, Windows
from facade.kernel.windows.totals import GroupTotals, Totals
from observatory.alarms import Alarms, Finding

CLASS, TOPIC, SUMS = "ObsWeather", "weather", "weather-sums"
RULE = Rule(length_us=SECOND, disorder_us=SECOND // 5, ahead_us=5 * SECOND)


def stations_of(icd: Icd) -> list[str]:
    """Return the stations of the interface; their places are their numbers in frames."""
    return list(icd.messages[TOPIC]["properties"]["station"]["enum"])


def as_frame(rows: Iterable[Sequence[float]]) -> Frame:
    """Return rows of station, window, count, oldest and newest time, sum and maximum of the wind, and rain."""
    station, window, count, oldest, newest, wind_sum, wind_max, rain = map(np.array, zip(*rows, strict=True))
    nothing, none = np.zeros(len(count), dtype=np.int64), np.zeros(0, dtype=np.int64)
    return Frame(
        group=station,
        epoch=nothing,
        window=window,
        late=nothing.astype(np.bool_),
        count=count,
        time_min=oldest,
        time_max=newest,
        runs=Runs(none, none, none),
        fields={"wind": FieldArrays(sum=wind_sum, max=wind_max), "rain": FieldArrays(sum=rain)},
    )


class _Window(msgspec.Struct):
    """The shown window."""

    mean: float
    gust: float
    stations: tuple[str, ...]
    newest: int
    """Time of its newest reading [Unix us]."""
    is_torn: bool
    """Whether a reading came after it was closed."""


class _Ledger(msgspec.Struct):
    """What a snapshot keeps."""

    totals: dict[str, GroupTotals]
    counted: dict[int, CountedOffsets]
    shown: _Window | None


class WeatherFlow(Flow):
    """The sums of all readings; see `facade.kernel.runtime.flow.Flow`."""

    topic = SUMS
    durable = True

    def __init__(self, server: Server, device: str) -> None:
        icd, self._server, self._device = server.icd, server, device
        self._stations, self._partitions = stations_of(icd), icd.topics[TOPIC].partitions
        entry = icd.classes[CLASS]
        self._stale_after = as_duration(entry.stale_after)
        self._gust = next(one for one in entry.attributes if one.name == "windGust")
        self._decoder = BatchDecoder(compile_message(SUMS, icd.messages[SUMS]))
        self._totals, self._windows = Totals(len(self._stations)), Windows(RULE, len(self._stations), rebuilt=True)
        self._counted: dict[int, CountedOffsets] = {}
        self._read_to: dict[int, Time] = {}
        self._lost: list[Missing] = []
        self._shown: _Window | None = None

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Add the sums of one transaction; a snapshot may count them already."""
        sums: Any = self._decoder.decode_one(record.value)
        if isinstance(sums, Unused):
            return sums
        if count:
            counted = self._counted.setdefault(sums.partition, CountedOffsets())
            found = counted.take(sums.log, sums.offset_from, sums.offset_to, counts=bool(sums.sums))
            if isinstance(found, Overlap):
                return RecordRejected("overlap", "$.offset_from", f"got offset {sums.offset_from}; {found}")
            if found is not None:
                missing = found.records if isinstance(found, Gap) else 0
                self._lost.append(Missing(missing, f"{TOPIC}/{sums.partition}: {found}"))
        if sums.sums:
            rows = as_frame(
                (self._stations.index(x.station), x.window, x.count, x.oldest, x.newest, x.wind_sum, x.wind_max, x.rain)
                for x in sums.sums
            )
            if count:
                self._totals.add(rows)
            self._windows.add(rows, self._closed_to(), record.timestamp_us)
        # After its own rows: this record closes windows for the next ones.
        self._read_to[sums.partition] = max(self._read_to.get(sums.partition, NEVER), Time(sums.read_to))
        return USED

    def lost_before(self) -> Iterable[Missing]:
        """Return what was found to be missing since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def as_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        totals = dict(zip(self._stations, self._totals.of_groups(), strict=True))
        made: dict[str, Any] = msgspec.to_builtins(_Ledger(totals, self._counted, self._shown), str_keys=True)
        return made

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a snapshot."""
        ledger = msgspec.convert(state, _Ledger, strict=False)
        self._counted, self._shown = ledger.counted, ledger.shown
        for number, name in enumerate(self._stations):
            self._totals.restore(number, ledger.totals.get(name, GroupTotals()))

    def readings(self, now: Time) -> Iterator[DeviceReading]:
        """Return totals and the newest closed window; without a new window, its values turn invalid."""
        newest, rain = Time(self._totals.newest_us.max()), self._totals.sums.get("rain")
        yield self._device, "readingsTotal", Reading(int(self._totals.count.sum()), newest)
        yield self._device, "rainTotal", Reading(0 if rain is None else int(rain.sum()), newest)
        self._look()
        one = self._shown
        if one is None:
            return
        is_stale = now - Time(one.newest) > self._stale_after
        quality = Quality.INVALID if is_stale else Quality.WARNING if one.is_torn else Quality.VALID
        judged = judge(one.gust, self._server.limits(self._device, self._gust))
        gust = judged if quality is Quality.VALID else quality
        time = Time(one.newest)
        yield self._device, "windMean", Reading(one.mean, time, quality)
        yield self._device, "windGust", Reading(one.gust, time, gust)
        yield self._device, "stations", Reading(one.stations, time, quality)
        state = "STANDBY" if is_stale else "ALARM" if gust is Quality.ALARM else "ON"
        yield self._device, "State", Reading(state, time)
        yield self._device, "Status", Reading(f"{len(one.stations)} of {len(self._stations)} stations report.", time)

    def find(self, now: Time) -> Iterator[Finding]:
        """Return the alarm about the wind: it is raised at the alarm limit, and cleared below the warning limit."""
        one, limits = self._shown, self._server.limits(self._device, self._gust)
        if one is None or limits is None or now - Time(one.newest) > self._stale_after:
            return  # not known
        if limits.max_alarm is not None and one.gust >= limits.max_alarm:
            yield Finding("windHigh", True, f"expected less than {limits.max_alarm:g} m/s, got {one.gust:.1f} m/s")
        elif limits.max_warning is None or one.gust < limits.max_warning:
            yield Finding("windHigh", False, f"the gust is {one.gust:.1f} m/s")

    def _closed_to(self) -> Any:
        """Return the time up to which all partitions are read, for each station."""
        read_to = min(self._read_to.get(one, NEVER) for one in range(self._partitions))
        return np.full(len(self._stations), read_to)

    def _look(self) -> None:
        for newest in self._windows.shown(self._closed_to())[:1]:
            rows, wind = newest.rows, newest.rows.fields["wind"]
            self._shown = _Window(
                float(np.asarray(wind.sum).sum() / rows.count.sum()),
                float(np.asarray(wind.max).max()),
                tuple(self._stations[number] for number in rows.group.tolist()),
                int(rows.time_max.max()),
                bool(newest.is_torn.any()),
            )


def compose(server: Server) -> None:
    """Add the weather to a device server."""
    flow = WeatherFlow(server, server.only_device(CLASS))
    server.flows.append(flow)
    Alarms.of(server).finders.append(flow.find)
