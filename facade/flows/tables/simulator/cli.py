"""`sdp-facade simulate calibration`: a calibration pipeline that solves for gains, again and again."""

import threading
from pathlib import Path
from typing import Annotated

import typer

from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.clock import SystemClock
from facade.config import load_settings
from facade.console import ERR, OUT
from facade.errors import BusError
from facade.flows.tables.content import ARROW, JSON, encode, encode_pointing
from facade.flows.tables.producer import TableProducer
from facade.flows.tables.simulator.solutions import (
    PointingSeries,
    SolutionScenario,
    SolutionSeries,
    channels_for,
)
from facade.messages import TableSegment
from facade.runtime.stopping import stopping
from facade.simulate.array import antenna_names

EPILOG = """
Examples:

[bold]sdp-facade simulate calibration --every 10[/bold]
until Ctrl-C, every 10 s a table of gains of 20 MB for subarray 01, which drift, and pointing offsets of all dishes

[bold]sdp-facade simulate calibration --kind bandpass --megabytes 100 --count 1[/bold]
one bandpass table of 100 MB; both need a worker that assembles: sdp-facade tables assemble
"""


def calibration(
    subarray: Annotated[int, typer.Option(min=1, max=16, help="Subarray of the products subarray/NN/...")] = 1,
    kind: Annotated[str, typer.Option(help="gains or bandpass.")] = "gains",
    every: Annotated[float, typer.Option(min=0, help="Seconds between two tables.")] = 10.0,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many. Default: at Ctrl-C.")] = None,
    megabytes: Annotated[float, typer.Option(min=0.01, max=1000, help="Size of a table.")] = 20.0,
    antennas: Annotated[int, typer.Option(min=1, max=512)] = 64,
    pointing: Annotated[bool, typer.Option(help="Also send pointing offsets of all dishes.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same gains.")] = 1,
    save: Annotated[
        Path | None, typer.Option(help="Folder for a copy of each table, to compare with the fetched ones.")
    ] = None,
) -> None:
    """Simulate a calibration pipeline: it sends tables of gains, and pointing offsets.

    The table's id goes to standard output, one line for each, once all of it is on the bus.
    """
    clock, product = SystemClock(), f"subarray/{subarray:02d}"
    scenario = SolutionScenario(
        seed=seed,
        kind=kind,
        antennas=antennas,
        channels=channels_for(megabytes, antennas=antennas),
        interval=max(every, 60.0),
    )
    series, offsets = SolutionSeries(scenario), PointingSeries(antenna_names(antennas), seed=seed)
    bus = KafkaBus(Connection(load_settings(), clock=clock), client="simulate-calibration")
    tables = TableProducer(bus.writer(), clock)
    pause = threading.Event()
    with stopping() as stopped:
        while not stopped() and (count is None or series.solved < count):
            begin = clock.monotonic()
            content = encode(series.next(round(clock.now() * 1e6)))
            name = f"{series.scenario.kind}-{subarray:02d}-{round(clock.now() * 1e3)}"
            try:
                sent = tables.send(f"{product}/{kind}", kind, content, ARROW, table=name)
                if pointing:
                    tables.send(f"{product}/pointing", "pointing", encode_pointing(offsets.next()), JSON)
            except BusError as error:  # the next one may do better; this one is said to be lost
                ERR.print(f"table {name} was not sent: {error}", style="red", markup=False)
                continue
            if save is not None:
                part = save / f"{name}.part"
                part.write_bytes(content)
                part.replace(save / name)  # who looks into the folder sees whole copies only
            _tell(sent, clock.monotonic() - begin)
            while not stopped() and clock.monotonic() - begin < every and series.solved != count:
                pause.wait(0.1)


def _tell(sent: TableSegment, took: float) -> None:
    OUT.print(sent.table, markup=False)
    ERR.print(
        f"{sent.table} of {sent.product}: {sent.size:,} B in {sent.count} segments, solved and sent in {took:.2f} s",
        markup=False,
    )
