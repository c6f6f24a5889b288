"""Processing blocks through kills: controllers publish their states while everything is killed.

Sent: the records of a plan, each until the bus confirms it. Expected: each block in the state that was confirmed last,
the counts and alarms that follow from them. Observed: the topic, SdpMaster, SdpSubarray and SdpAlerts. Expected values
are worked out apart from `facade.flows.blocks`.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tango

from facade.flows.blocks.source import BLOCKS, BlockSource, read_block
from facade.infra.processes import Process
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import NEVER, Clock, Time
from facade.kernel.errors import BusError
from facade.sdp.messages import ProcessingBlock
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.fault_runs.frame import BROKER, READY_WITHIN, FaultRun, Size, process_name
from sdp_facade_lab.roles import RoleContext

STATES = ("STARTING", "WAITING", "RUNNING", "FINISHED", "FAILED")
REMOVED = ""
"""Instead of a state: the block is taken off the topic."""

_EXECUTION_BLOCKS = 6
_OPEN = 15
"""Blocks of a controller that run at once; those of all four are as many as SdpMaster lists."""
_FAILS = 10
"""Each such block of an execution block fails."""
_STEPS = _EXECUTION_BLOCKS * 4 + (_EXECUTION_BLOCKS - 2)
"""For each block of an execution block: four states, and the removal of one of the execution block before the last."""

SUBARRAYS = 4
"""Each has a controller; in the newest execution block of the last one nothing fails."""


class Step(NamedTuple):
    """One record."""

    pb_id: str
    eb_id: str
    state: str


class Confirmed(NamedTuple):
    """A block as its controller was confirmed to have told it last."""

    subarray: int
    eb_id: str
    state: str
    sequence: int
    time: Time


def plan(seed: int, subarray: int, records: int) -> list[Step]:
    """Return what the controller of a subarray tells, in order; the same each time.

    Parameters
    ----------
    records
        How many; the last execution block is cut off there, so that some of its blocks have not ended.
    """
    chance = random.Random(seed * 1_000_003 + subarray)  # noqa: S311 - a plan that can be repeated
    count = -(-records // _STEPS)
    made: list[Step] = []
    for number in range(_EXECUTION_BLOCKS):
        fails = subarray < SUBARRAYS or number < _EXECUTION_BLOCKS - 1
        if number >= 2:
            made += [step._replace(state=REMOVED) for step in _first(subarray, number - 2, count)]
        made += _interleaved(_first(subarray, number, count), chance, fails=fails)
    return made[:records]


def _first(subarray: int, number: int, count: int) -> list[Step]:
    eb_id = f"eb-fault{subarray}-20261124-{number:05d}"
    return [Step(f"pb-fault{subarray}-{number:03d}-{one:05d}", eb_id, STATES[0]) for one in range(count)]


def _interleaved(blocks: Sequence[Step], chance: random.Random, *, fails: bool) -> Iterable[Step]:
    waiting = [
        [step._replace(state=state) for state in (*STATES[:3], "FAILED" if fails and not one % _FAILS else "FINISHED")]
        for one, step in enumerate(blocks)
    ]
    waiting.reverse()
    running: list[list[Step]] = []
    while waiting or running:
        while waiting and len(running) < _OPEN:
            running.append(waiting.pop())
        block = chance.choice(running)
        yield block.pop(0)
        if not block:
            running.remove(block)


def newest(subarray: int, steps: Iterable[Step], confirmed: Iterable[tuple[int, int]]) -> dict[str, Confirmed]:
    """Return each block as it was told last, by its id.

    Parameters
    ----------
    confirmed
        Sequence and time of the records that the bus has confirmed, of the first steps in order.
    """
    blocks: dict[str, Confirmed] = {}
    for step, (sequence, time) in zip(steps, confirmed, strict=False):
        if step.state == REMOVED:
            del blocks[step.pb_id]
        else:
            blocks[step.pb_id] = Confirmed(subarray, step.eb_id, step.state, sequence, Time(time))
    return blocks


def failed_now(blocks: Mapping[str, Confirmed], subarray: int) -> list[str]:
    own = {name: one for name, one in blocks.items() if one.subarray == subarray}
    last = max(own.values(), key=lambda one: one.time, default=None)
    return [name for name, one in own.items() if last and one.eb_id == last.eb_id and one.state == "FAILED"]


_LINE = len(f"{0:016d} {0:016d}\n")
_SEND_WITHIN = 5.0
_PAUSE = 0.2


def count_confirmed(journal: Path) -> int:
    return journal.stat().st_size // _LINE if journal.exists() else 0


def read_confirmed(journal: Path) -> list[tuple[int, int]]:
    """Return sequence and time [Unix us] of each record that the bus has confirmed, in order; 0, 0 of a removal."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [(int(line[:16]), int(line[17:])) for line in lines]


def tell_blocks(context: RoleContext, *, journal: str, subarray: int, seed: int, records: int, interval: float) -> None:
    """Publish the rest of the plan. A record that was not confirmed in an earlier life is sent again.

    Parameters
    ----------
    interval
        Shortest time between two records [s].
    """
    file, clock = Path(journal), context.clock
    name = f"controller-{subarray}"
    writer = KafkaBus(Connection(context.settings, clock=clock), client=name).writer()
    blocks = BlockSource(name, lambda record: writer.send_durably(record, _SEND_WITHIN), clock)
    begin = clock.monotonic()
    with file.open("a") as lines:
        for number, step in enumerate(plan(seed, subarray, records)[count_confirmed(file) :]):
            clock.sleep(max(0.0, begin + number * interval - clock.monotonic()))
            sequence, time = _until_confirmed(blocks, subarray, step, clock)
            lines.write(f"{sequence:016d} {time:016d}\n")
            lines.flush()
    # It lives on, so that it can be killed although it has nothing more to tell.
    while not context.called_off:
        clock.sleep(_PAUSE)


def _tell(blocks: BlockSource, subarray: int, step: Step) -> tuple[int, Time]:
    if step.state == REMOVED:
        blocks.remove(step.pb_id)
        return 0, NEVER
    why = {"text": "made to fail"} if step.state == "FAILED" else {}
    told = blocks.tell(step.pb_id, step.eb_id, subarray, "batch", step.state, **why)
    return told.sequence, told.time


def _until_confirmed(blocks: BlockSource, subarray: int, step: Step, clock: Clock) -> tuple[int, Time]:
    while True:
        try:
            return _tell(blocks, subarray, step)
        except BusError:
            clock.sleep(_PAUSE)


CONDITION = "processingBlockFailed"
ATTRIBUTES = {state: f"blocks{state.title()}" for state in STATES}
"""By state, which attribute of SdpSubarray and SdpMaster counts it."""
_ACTIVE = ("UNACK", "ACKED")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlocks:
    """Expected and observed."""

    told: Mapping[str, Confirmed]
    """Each block, as its controller was confirmed to have told it last."""
    topic: Mapping[str, ProcessingBlock]
    """Each block, as its newest record has it."""
    shown: Mapping[str, Mapping[str, Any]]
    """Values of attributes, by device; the name of an SdpSubarray ends with its number."""
    alarms: Iterable[Mapping[str, Any]]
    """GetAlarms."""


def differences(found: FoundBlocks, master: str) -> list[str]:
    return [*_on_the_topic(found), *_at_devices(found, master), *_alarms(found)]


def _on_the_topic(found: FoundBlocks) -> list[str]:
    wrong = []
    for name in sorted(found.told.keys() | found.topic.keys()):
        expected, block = found.told.get(name), found.topic.get(name)
        got = block and Confirmed(block.subarray, block.eb_id, block.state, block.sequence, block.time)
        if got != expected:
            wrong.append(f"newest record of {name}: expected {expected or 'none'}, got {got or 'none'}")
    return wrong


def _at_devices(found: FoundBlocks, master: str) -> list[str]:
    wrong = []
    for device, values in found.shown.items():
        number = 0 if device == master else int(device[-2:])
        blocks = {name: one for name, one in found.told.items() if number in (0, one.subarray)}
        counts = Counter(one.state for one in blocks.values())
        for state, attribute in ATTRIBUTES.items():
            if values.get(attribute) != counts[state]:
                wrong.append(f"{attribute} of {device}: expected {counts[state]}, got {values.get(attribute)}")
        wrong += _texts(device, values, blocks)
    return wrong


def _texts(device: str, values: Mapping[str, Any], blocks: Mapping[str, Confirmed]) -> list[str]:
    wrong = []
    running = {name: one.state for name, one in blocks.items() if one.state not in ("FINISHED", "FAILED")}
    listed = {one["pb_id"]: one["state"] for one in map(json.loads, values.get("processingBlocks") or ())}
    if listed != running:
        differ = sorted(name for name in listed.keys() | running.keys() if listed.get(name) != running.get(name))
        wrong.append(f"processingBlocks of {device}: expected {len(running)} blocks, differs in {differ}")
    failed = {name: one.time for name, one in blocks.items() if one.state == "FAILED"}
    # Two controllers may have told in the same microsecond.
    expected = {name for name, time in failed.items() if time == max(failed.values())} or {""}
    got = json.loads(values["newestFailure"])["pb_id"] if values.get("newestFailure") else ""
    if got not in expected:
        wrong.append(f"newestFailure of {device}: expected {' or '.join(sorted(expected))}, got {got or 'none'}")
    return wrong


def _alarms(found: FoundBlocks) -> list[str]:
    """Hold the alarms of subarrays against the failures in their newest execution blocks."""
    alarms = {one["source"][-2:]: one for one in found.alarms if one["condition"] == CONDITION}
    wrong = []
    for number in range(1, SUBARRAYS + 1):
        failures = failed_now(found.told, number)
        alarm = alarms.get(f"{number:02d}")
        here = f"{CONDITION} of subarray {number:02d}"
        if failures and (alarm is None or alarm["state"] not in _ACTIVE):
            wrong.append(f"{here}: expected an active alarm, got {alarm['state'] if alarm else 'none'}")
        elif failures and alarm and not any(name in alarm["text"] for name in failures):
            wrong.append(f"{here}: expected one of its {len(failures)} failures in the text, got {alarm['text']!r}")
        elif not failures and alarm is not None and alarm["state"] in _ACTIVE:
            wrong.append(f"{here}: expected none that is active, got {alarm['state']}: {alarm['text']}")
    return wrong


_RATE = 600
"""Records of all controllers together [1/s]: 180,000 in five minutes."""
_SERVERS = {"device server of subarrays": "subarray", "device server of SdpMaster": "control"}
_CONTROLLERS = {f"controller {number}": number for number in range(1, SUBARRAYS + 1)}
_NOTHING = ("DeadLettered", "Balance", "Overlap", "Skipped")
"""Figures of the account of the topic that are 0."""


class BlockFaultRun(FaultRun):
    """One run of the processing blocks."""

    unit, all_is_well = "records", "topic, devices and alarms have each block in the state that was confirmed last"
    full, short = Size(60_000, 5), Size(6_000, 1)
    settings: ClassVar = {"nodes": 1, "subarrays": SUBARRAYS}
    faults = (*_CONTROLLERS, *_SERVERS, BROKER)
    between = (1.0, 4.0)

    def prepare(self) -> None:
        self._records = -(-self.count // SUBARRAYS)
        self._plans = {number: plan(self.seed, number, self._records) for number in _CONTROLLERS.values()}
        self._task: dict[str, Any] = {"seed": self.seed, "records": self._records, "interval": SUBARRAYS / _RATE}
        (self._master,) = self.deployment.devices("SdpMaster")
        (self._bus,) = self.deployment.devices("SdpBus")
        (self._alerts,) = self.deployment.devices("SdpAlerts")
        self._count = 0

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        made = self.deployment
        servers = {**_SERVERS, "device server of SdpAlerts": "alerts"}
        tell = partial(made.play, tell_blocks, **self._task)
        return {
            **{part: partial(made.server, instance, name=process_name(part)) for part, instance in servers.items()},
            **{
                part: partial(tell, name=process_name(part), journal=str(self._journal(number)), subarray=number)
                for part, number in _CONTROLLERS.items()
            },
        }

    def step(self) -> bool:
        self._count = sum(count_confirmed(self._journal(number)) for number in self._plans)
        is_stuck = self.is_stuck(self._count)
        return bool(self.left) or (self._count < SUBARRAYS * self._records and not is_stuck)

    def in_words(self) -> str:
        return f"{self._count:,} records confirmed"

    def account(self) -> Balance:
        confirmed = {number: read_confirmed(self._journal(number)) for number in self._plans}
        told = {
            name: one
            for number, steps in self._plans.items()
            for name, one in newest(number, steps, confirmed[number]).items()
        }
        made, found = Balance(), self._found(told)
        begin = self.clock.monotonic()

        def is_right() -> bool:
            nonlocal found
            self.revive()
            found = self._found(told)
            made.wrong = [*differences(found, self._master), *self._not_zero()]
            return not made.wrong

        self.progress.wait_until(is_right, READY_WITHIN, "devices, topic and controllers agree")
        for number, steps in self._plans.items():
            if len(confirmed[number]) != len(steps):
                made.wrong.append(f"controller {number}: told {len(confirmed[number]):,} of {len(steps):,} records")
        steps = [one for plan_ in self._plans.values() for one in plan_]
        made.rows += [
            ("records confirmed", sum(map(len, confirmed.values()))),
            ("... of them removals", sum(one.state == REMOVED for one in steps)),
            ("... of them failures", sum(one.state == "FAILED" for one in steps)),
            ("blocks compared", len(told)),
            ("devices compared", len(found.shown)),
            (f"alarms {CONDITION}", sum(one["condition"] == CONDITION for one in found.alarms)),
            ("from the end of the run until all agreed", f"{self.clock.monotonic() - begin:.1f} s"),
        ]
        return made

    def _journal(self, number: int) -> Path:
        return self.deployment.folder / f"confirmed-{number}.txt"

    def _found(self, told: Any) -> FoundBlocks:
        names = [*ATTRIBUTES.values(), "processingBlocks", "newestFailure"]
        devices = [self._master, *self.deployment.devices("SdpSubarray")]
        return FoundBlocks(
            told=told,
            topic=self._topic(),
            shown={device: self.deployment.values(device, *names) for device in devices},
            alarms=self._alarms(),
        )

    def _topic(self) -> dict[str, ProcessingBlock]:
        blocks: dict[str, ProcessingBlock] = {}
        try:
            for record in KafkaBus(self.deployment.connection, client="account").read_all(BLOCKS):
                name = (record.key or b"").decode()
                blocks.pop(name, None)
                if isinstance(block := read_block(record), ProcessingBlock):
                    blocks[name] = block
        except BusError as error:
            self.progress.step(f"  {error}")
        return blocks

    def _alarms(self) -> list[dict[str, Any]]:
        try:
            return self.deployment.alarms(self._alerts)
        except tango.DevFailed:
            return []

    def _not_zero(self) -> list[str]:
        names = [f"processingBlocks{figure}" for figure in _NOTHING]
        values = self.deployment.values(self._bus, *names)
        return [f"{name}: expected 0, got {values.get(name)}" for name in names if values.get(name) != 0]
