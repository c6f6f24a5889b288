"""A simulator of the weather stations, which counts what it sends."""

import math
from typing import Annotated

import msgspec
import typer

from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import SystemClock
from facade.kernel.config import load_client_settings
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from facade.kernel.runtime.stopping import stopping
from observatory.weather import TOPIC, stations_of

_FLUSH = 30.0


def simulate(
    wind: Annotated[float, typer.Option(min=0.0, max=100.0, help="Mean wind speed [m/s].")] = 8.0,
    rate: Annotated[float, typer.Option(min=0.1, max=10_000.0, help="Readings of each station [1/s].")] = 10.0,
    readings: Annotated[int, typer.Option(min=0, help="Readings of each station; 0: until it is stopped.")] = 0,
) -> None:
    """Send readings of all weather stations, and print what was sent."""
    clock, stations, sent, tips = SystemClock(), stations_of(load()), 0, 0
    writer = KafkaStreamWriter(Connection(load_client_settings()), health=BusHealth(), client="weather-stations")
    with stopping() as stopped:
        while not stopped() and (not readings or sent < readings * len(stations)):
            speed, rain, now = wind * (1 + 0.1 * math.sin(sent)), sent % 7 == 0, clock.now_us()
            about = {"schema": "weather/1", "time": now, "wind": round(speed, 2), "rain": int(rain)}
            values = [msgspec.json.encode({**about, "station": station}) for station in stations]
            writer.send_many(TOPIC, [station.encode() for station in stations], values)
            sent, tips = sent + len(stations), tips + len(stations) * rain
            writer.poll()
            clock.sleep(1 / rate)
    if not writer.flush(_FLUSH) or writer.failed:
        raise BusError(f"expected all of {sent} readings on the bus, got {writer.delivered}")
    typer.echo(f"sent {sent} readings, {tips} tips of rain")
