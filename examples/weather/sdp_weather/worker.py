"""The worker of the weather stations: each measurement is checked, and becomes the newest report of its station."""

from collections.abc import Sequence

from facade.kernel.bus.port import Record
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.outcome import RecordRejected, Suppressed, Unused
from facade.kernel.runtime.worker import TransactionalWorker, record_worker
from facade.kernel.runtime.worker_process import FREE, Site, Slot, run_worker

RAW, TOPIC = "weather.raw", "weather"
KNOTS = 0.514444
"""One knot [m/s]."""


def weather_worker(site: Site) -> TransactionalWorker:
    """Return one slot of the group that takes measurements."""
    decoder = BatchDecoder(compile_message("weather-raw", site.icd.messages["weather-raw"]))

    def convert(record: Record) -> Sequence[Record] | Unused:
        """Return the report that a measurement leads to."""
        raw = decoder.decode_one(record.value)
        if isinstance(raw, Suppressed | RecordRejected):
            return raw
        report = b'{"schema":"weather/1","station":"%s","time":%d,"wind_speed":%.2f}'
        value = report % (raw.station.encode(), raw.time, raw.knots * KNOTS)
        return [Record(topic=TOPIC, key=raw.station.encode(), value=value)]

    return record_worker(site.log(RAW), RAW, convert, name=f"weather-{site.slot}", clock=site.clock)


def weather(slot: Slot = FREE) -> None:
    """Take measurements of weather stations, exactly-once: one worker of the group.

    Example: sdp-facade weather --slot 0
    """
    run_worker("weather-worker", slot, weather_worker)
