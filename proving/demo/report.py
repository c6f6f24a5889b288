"""What a demo leaves behind for programs: one JSON file."""

import msgspec

from facade.flows.telemetry.simulator.report import Report
from proving.demo.account import Line
from proving.demo.command_account import CommandLine
from proving.demo.order_account import OrderLine
from proving.demo.timing import EventRates, Interval, Spread


class Kill(msgspec.Struct, frozen=True):
    """One process that was killed."""

    time: float
    """[Unix s]."""
    what: str
    """The process."""


class AlertLine(msgspec.Struct, frozen=True, kw_only=True):
    """One alert or action, as a client was given it."""

    sequence: int
    time: float
    """When the bus took it [Unix s]."""
    alarm: str
    what: str
    text: str


class DemoReport(msgspec.Struct, kw_only=True):
    """The result of a demo; the file holds nothing else."""

    schema: str = "demo/1"
    began: float
    """[Unix s]."""
    elapsed: float = 0.0
    """[s]."""
    nodes: int
    rate: float
    """Asked for, of each node [heaps/s]."""
    seconds: float
    topic_prefix: str = ""
    balanced: bool = False
    """Whether every figure agrees to the last record."""
    failures: list[str] = []
    """What does not balance, which limit was passed, what went wrong; empty: all is well."""
    baselines: list[float] = msgspec.field(default_factory=list, name="yardsticks")
    """How long a device server with nothing in it took to its first answer, each time that it was started [s]."""
    patience: float = 1.0
    """How many times as long the limits of time are, as was asked for."""
    slowness: float = 1.0
    """How many times as long as on the machine for which the limits of time were set; never less than 1."""
    restarts: list[Interval] = []
    """From each kill until all was back and quiet [Unix s]."""
    kills: list[Kill] = []
    experiments: list[Kill] = []
    """What ended or stood still while the demo stayed, by a person's hand: no failure."""
    first_values_after: float | None = None
    """From the start of the simulator until all nodes showed a value [s]."""
    worker_recovery: float | None = None
    """From the new start of the killed worker until all nodes showed data from after it [s]."""
    server_recovery: float | None = None
    """From the new start of the killed device server until its totals and a new window were back [s]."""
    drained_after: float | None = None
    """From the last record sent until all were accounted for [s]."""
    invalid_after: float | None = None
    """From the last record sent until the last windowed attribute was ATTR_INVALID [s]."""
    notification_latency: Spread | None = None
    """From a heap to the event whose value contains it."""
    window_latency: Spread | None = None
    """From the end of a window to its event."""
    window_latency_undisturbed: Spread | None = None
    """The same, outside of restarts."""
    pace: EventRates | None = None
    account: list[Line] = []
    subarray_recovery: float | None = None
    """From the new start of the subarrays' killed device server until their state was back [s]."""
    controller_recovery: float | None = None
    """From the new start of the killed controller until the command that it was executing had its outcome [s]."""
    commands: list[CommandLine] = []
    """Each command of the observation, in the order of the calls."""
    command_account: list[Line] = []
    orders: list[OrderLine] = []
    """What controllers ordered each other to do, below the commands that it was for."""
    order_account: list[Line] = []
    alerts_recovery: float | None = None
    """From the new start of the killed device server of the alerts until its alarms were back [s]."""
    alerts: list[AlertLine] = []
    """Each alert and action that a client was given, in the order of their numbers."""
    alert_account: list[Line] = []
    tables_recovery: float | None = None
    """From the new start of the killed worker that assembles tables until the next solution was shown [s]."""
    table_account: list[Line] = []
    logs_recovery: float | None = None
    """From the new start of the killed worker of logs until it counted further ones [s]."""
    mirror_recovery: float | None = None
    """From the new start of the killed mirror until receptors were mirrored again [s]."""
    log_account: list[Line] = []
    mirror_account: list[Line] = []
    block_account: list[Line] = []
    sent: Report | None = None
    """The simulator's own report."""
