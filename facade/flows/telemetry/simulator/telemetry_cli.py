"""`sdp-facade simulate telemetry`: the senders of any windowed topic, with values made up from its schema."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import Plan, plan, windowed
from facade.kernel.clock import SECOND, SystemClock, Time
from facade.kernel.errors import ConfigError
from facade.kernel.icd.fields import bound, is_numeric, kind, properties
from facade.kernel.icd.load import load
from facade.simulate.pacing import Pacer
from facade.simulate.sender import Shape, Stop, StreamReport
from facade.simulate.sending import Bootstrap, Count, Prefix, ReportFile, Seconds, Seed, deployment, send, sending

_WIDEST = 1000.0
"""Width of the range of values above the schema's minimum, unless a range is given."""
_EXACT = 2**53
_LARGEST = 1e18
"""Bound of the values that a range may have: the draw of an integer takes 64 bits."""

Range = tuple[float, float]


class GroupAccount(msgspec.Struct):
    """Records sent by one group."""

    count: int = 0
    sums: dict[str, int | float] = {}
    """Sums of each numeric field that is no time, sequence or epoch."""
    last: dict[str, int | float] = {}


class RecordStream:
    """Records of one windowed topic; `ranges` has the lowest and highest value by field, else the schema's."""

    def __init__(
        self,
        plan: Plan,
        schema: Mapping[str, Any],
        groups: Sequence[Group],
        *,
        seed: int = 1,
        epoch: int = 1,
        ranges: Mapping[str, Range] | None = None,
    ) -> None:
        self.topic, self.plan, self.groups = plan.topic, plan, groups
        self.accounts = {group: GroupAccount() for group in groups}
        self.given = 0
        self._epoch = epoch
        self._dice = np.random.default_rng(seed)
        rule = plan.window
        fixed = {rule.time, rule.group, rule.sequence, rule.epoch}
        self._constants = {name: part["const"] for name, part in properties(dict(schema)).items() if "const" in part}
        self._free = {
            name: part for name, part in properties(dict(schema)).items() if name not in fixed | self._constants.keys()
        }
        self._ranges = dict(ranges or {})

    def take(self, count: int, now_us: Time) -> tuple[list[bytes], list[bytes | None]]:
        """Return and count the keys and values of the next records, all with the given time."""
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for _ in range(count):
            group = self.groups[self.given % len(self.groups)]
            keys.append(str(group).encode())
            values.append(msgspec.json.encode(self._record(group, now_us)))
            self.given += 1
        return keys, values

    def _record(self, group: Group, now_us: Time) -> dict[str, Any]:
        rule, account = self.plan.window, self.accounts[group]
        own = {rule.time: now_us, rule.group: group, rule.sequence: account.count, rule.epoch: self._epoch}
        drawn = {name: self._draw(name, part) for name, part in self._free.items()}
        account.count += 1
        for name, value in drawn.items():
            if is_numeric(self._free[name]):
                account.sums[name] = account.sums.get(name, 0) + value
                account.last[name] = value
        return self._constants | drawn | {name: value for name, value in own.items() if name is not None}

    def _draw(self, name: str, part: dict[str, Any]) -> Any:
        if "enum" in part:
            return part["enum"][int(self._dice.integers(len(part["enum"])))]
        if not is_numeric(part):
            return bool(self._dice.integers(2)) if kind(part) == "boolean" else "simulated"
        low = max(bound(part, "minimum", 0.0), -_EXACT)
        low, high = self._ranges.get(name, (low, min(bound(part, "maximum", low + _WIDEST), low + _WIDEST)))
        if kind(part) == "integer":
            return int(self._dice.integers(round(low), round(high), endpoint=True))
        return float(self._dice.uniform(low, high))


VERSION = "simulate-telemetry/1"


class TelemetryReport(StreamReport, frozen=True, kw_only=True):
    """An exact account of one run."""

    schema: str = VERSION
    rate: float
    groups: dict[str, GroupAccount]


def _report(stream: RecordStream, rate: float, common: dict[str, Any]) -> TelemetryReport:
    groups = {str(group): account for group, account in stream.accounts.items()}
    return TelemetryReport(**common, rate=rate, groups=groups)


EPILOG = """
Examples:

sdp-facade simulate telemetry ingest.buffers --rate 40
# until Ctrl-C, ten reports/s of each of four nodes

sdp-facade simulate telemetry flagging --count 100 --report sent.json
# sent.json has the totals that must be found at the other end

sdp-facade simulate telemetry storage --count 1 --range used=2e16:2.1e16 --range free=1e16:1.1e16
# the report of one day, with plausible figures
"""


def telemetry(
    topic: Annotated[str, typer.Argument(help="A topic of the interface that has a window.")],
    group: Annotated[
        list[str] | None, sending(help="Name or number of a group. Repeatable. Default: all of the deployment.")
    ] = None,
    rate: Annotated[float, sending(min=0.001, help="Records/s of all groups together.")] = 10.0,
    seconds: Seconds = None,
    count: Count = None,
    seed: Seed = 1,
    epoch: Annotated[int | None, sending(min=0, help="Default: the Unix time at the start.")] = None,
    range_: Annotated[
        list[str] | None, sending("--range", metavar="FIELD=LOW:HIGH", help="Values of a field. Repeatable.")
    ] = None,
    report: ReportFile = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
) -> None:
    """Send records of a windowed topic; the groups send in turn.

    The exit code is 1 if a record was not delivered.
    """
    icd, settings = load(), deployment(bootstrap, prefix)
    if topic not in windowed(icd):
        raise typer.BadParameter(f"expected one of {', '.join(windowed(icd))}, got {topic}")
    found = plan(icd, topic)
    known: Sequence[Group] = found.groups(settings)
    try:
        groups = [found.group(one) for one in group] if group else known
    except ValueError as error:
        raise ConfigError(
            f"--group: expected numbers as the groups of {topic}, got {', '.join(group or ())}"
        ) from error
    if not groups:
        raise typer.BadParameter("expected --group, because the interface does not list the names of the groups")
    schema = icd.messages[found.message]
    ranges = dict(_range(text, properties(schema)) for text in range_ or ())
    began = SystemClock().now_us() // SECOND if epoch is None else epoch
    stream = RecordStream(found, schema, groups, seed=seed, epoch=began, ranges=ranges)
    shape, as_report = Shape(pace=partial(Pacer, rate)), partial(_report, stream, rate)
    stop, client = Stop(count=count, seconds=seconds), "simulate-telemetry"
    send(stream, shape, as_report, settings, stop, client=client, file=report, summary=_summary)


def _summary(report: TelemetryReport) -> str:
    return f"sent {report.sent:,} records of {len(report.groups)} groups in {report.elapsed:.1f} s"


def _range(text: str, known: dict[str, dict[str, object]]) -> tuple[str, Range]:
    name, _, bounds = text.partition("=")
    low, _, high = bounds.partition(":")
    try:
        found = float(low), float(high)
    except ValueError:
        found = (1.0, 0.0)
    if name not in known or not -_LARGEST <= found[0] <= found[1] <= _LARGEST:  # NaN is refused as well
        what = f"FIELD=LOW:HIGH, up to {_LARGEST:g}, with a field of {', '.join(known)}"
        raise typer.BadParameter(f"--range: expected {what}, got {text}")
    return name, found
