"""`sdp-facade simulate quality`: a receive pipeline that measures the quality of its data, again and again."""

import threading
from typing import Annotated, get_args

import typer

from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.clock import SystemClock
from facade.config import MOST_SUBARRAYS, load_settings
from facade.console import ERR
from facade.flows.quality.messages import QUALITY
from facade.flows.quality.simulator.metrics import MOST_ANTENNAS, QualityScenario, QualitySeries, channels_for
from facade.messages import MetricEncoding
from facade.runtime.stopping import stopping

_CHANNELS = 1024
_LAST = 30.0
"""Longest wait, at the end, for what is under way [s]."""

EPILOG = """
Examples:

[bold]sdp-facade simulate quality[/bold]
until Ctrl-C, once per second, all metrics of subarray 01: 64 antennas, one of them bad, and interference

[bold]sdp-facade simulate quality --encoding msgpack-numpy --megabytes-per-second 5 --rate 2[/bold]
5 MB/s, as SKA's receive pipelines write arrays
"""


def quality(
    subarray: Annotated[int, typer.Option(min=1, max=MOST_SUBARRAYS, help="Subarray of the data.")] = 1,
    rate: Annotated[float, typer.Option(min=0.01, max=1000, help="Rounds/s; each has all metrics once.")] = 1.0,
    antennas: Annotated[int, typer.Option(min=2, max=MOST_ANTENNAS)] = 64,
    encoding: Annotated[str, typer.Option(help=f"One of {', '.join(get_args(MetricEncoding))}.")] = "npy",
    megabytes_per_second: Annotated[
        float | None, typer.Option(min=0.001, help=f"Sets the number of channels. Default: {_CHANNELS} channels.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many rounds. Default: at Ctrl-C.")] = None,
    scan_id: Annotated[int, typer.Option(min=0, help="Scan to which the data belong.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same metrics.")] = 1,
) -> None:
    """Simulate a receive pipeline: it sends flags, noise and spectra of one subarray, as arrays.

    The exit code is 1 if a record was not delivered.
    """
    chosen: MetricEncoding | None = next((one for one in get_args(MetricEncoding) if one == encoding), None)
    if chosen is None:
        raise typer.BadParameter(f"expected one of {', '.join(get_args(MetricEncoding))}, got {encoding}")
    channels = (
        _CHANNELS if megabytes_per_second is None else channels_for(megabytes_per_second / rate, antennas=antennas)
    )
    scenario = QualityScenario(
        seed=seed, subarray=subarray, antennas=antennas, channels=channels, encoding=chosen, scan_id=scan_id
    )
    series, clock = QualitySeries(scenario), SystemClock()
    writer = KafkaBus(Connection(load_settings(), clock=clock), client="simulate-quality").writer()
    pause, begin, records, size = threading.Event(), clock.monotonic(), 0, 0
    with stopping() as stopped:
        while not stopped() and (count is None or series.rounds < count):
            for record in series.next(round(clock.now() * 1e6)):
                writer.send(record)
                records, size = records + 1, size + len(record.value or b"")
            while not stopped() and (left := begin + series.rounds / rate - clock.monotonic()) > 0:
                pause.wait(min(left, 0.1))
    writer.close(_LAST)
    took = max(clock.monotonic() - begin, 1e-3)
    ERR.print(f"sent {records:,} metrics in {series.rounds:,} rounds, {size / 1e6 / took:.2f} MB/s", markup=False)
    if not writer.settled(writer.mark()) or writer.failures(QUALITY):
        ERR.print("[red]not all of them were delivered")
        raise typer.Exit(1)
