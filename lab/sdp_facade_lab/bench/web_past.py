"""Browsers that play an archived night on the operator's page, each from another second on.

A browser asks as the page of an ingest node does: for the first second, for the next ones before they are shown, for
its six trends each time that all bins of an answer are over, and for what happened. Each has an address of its own, as
the server limits the questions of one.
"""

import asyncio
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from facade.flows.alerts.messages import ALERTS, STATES, Alarm, Alert, alert_record, state_record
from facade.flows.commands.messages import (
    ACKS,
    COMMANDS,
    AckMessage,
    CommandMessage,
    ack_record,
    command_id,
    command_record,
)
from facade.infra.ports import choose_port
from facade.kernel.bus.port import Record
from facade.kernel.clock import MINUTE, SECOND, Clock, Time, to_ms, utc_text
from facade.kernel.icd.model import Attribute, Icd
from facade.kernel.instances import classes_of
from facade.sdp import alarm_states as states
from facade.sdp.messages import CommandAckStatus
from sdp_facade_clients.web.following import is_followed
from sdp_facade_clients.web.openapi import MOST_STEPS
from sdp_facade_lab.bench.archive import BEGIN, put
from sdp_facade_lab.bench.load import RATE, stream
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome, at_most, none_of, quantiles
from sdp_facade_lab.bench.web import BROWSERS, browsers
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.testbed import Testbed

TRENDS: Final = ("heapRate", "latencyP99", "packetsLost", "heapsLate", "flaggedFractionMean", "heapsMissing")
"""Of the page of a node."""
BINS, AHEAD, SPAN, GRID = 400, 40, 3600, 10
"""Bins of a trend, those behind it, its length [s], and the grid of the times of which is asked what happened [s]."""
_STEADY_NODES: Final = 4
"""Nodes whose trends have a value each second; all other attributes have one a minute."""
_MOST_NODES: Final = 100
_EVERY: Final = 120
"""Time between two commands, and from an alarm to its end [s]."""
_NODE: Final = "mid-sdp/ingest/{:04d}"
LOOKING: Final = 50
"""Browsers that play at the same time."""
_WAITS: Final = 2
FIRST_BAR, STEP_BAR, CORE_BAR = 1.0, 0.3, 0.4
"""First answer about a second of the past, and wait for a next one [s]; processor time with all browsers [cores]."""
_BEGINS_WITHIN: Final = 120.0
_IDLE: Final = 4.0
"""Time after which a connection is not used again [s]: the server closes one that was idle for 5 s."""
_LONGEST: Final = 40.0
"""Longest wait for an answer, as of the page [s]."""


class Asked(msgspec.Struct):
    """What all browsers together asked."""

    firsts: list[float] = []
    """Time of each answer about a first second [s]."""
    begins: list[float] = []
    waits: list[float] = []
    """How much later than a second after the one before it a second was shown: the second one, and the others [s]."""
    questions: int = 0
    refused: int = 0


def make_night(folder: Path, deployment: Deployment, seconds: int) -> None:
    """Archive a night of a deployment: the history of up to 100 of its nodes and of all other devices, and acts."""
    icd = deployment.icd
    settings = msgspec.structs.replace(deployment.settings, nodes=min(deployment.settings.nodes, _MOST_NODES))
    kinds = classes_of(icd, settings, icd.classes)
    put(folder, icd, "history", _history(icd, kinds, seconds))
    for topic, made in ((COMMANDS, _commands), (ACKS, _acks), (ALERTS, _alerts), (STATES, _states)):
        records = chain.from_iterable(map(made, range(0, seconds, _EVERY)))
        put(folder, icd, topic, ((to_ms(one.timestamp_us), one.key or b"", one.value or b"") for one in records))


def _history(icd: Icd, kinds: Mapping[str, str], seconds: int) -> Iterator[tuple[int, bytes, bytes]]:
    text = '{"schema":"history/1","device":"%s","attribute":"%s","value":%s,"time":%d}'
    names = [
        (device, one.name, _value(one))
        for device, kind in kinds.items()
        for one in icd.classes[kind].attributes
        if is_followed(one)
    ]
    steady = [(_NODE.format(node), name, "%d.5") for node in range(_STEADY_NODES) for name in TRENDS]
    for second in range(seconds):
        at = BEGIN + second * SECOND
        for device, attribute, value in chain(names[second % 60 :: 60], steady):
            shown = value % (second % 97) if "%" in value else value
            yield to_ms(at), f"{device}/{attribute}".encode(), (text % (device, attribute, shown, at)).encode()


def _value(attribute: Attribute) -> str:
    texts = {"DevState": '"ON"', "DevString": '"text"', "DevBoolean": "true", "DevDouble": "%d.25"}
    return "[]" if attribute.length else "0" if attribute.enum else texts.get(attribute.type, "%d")


def _commands(second: int) -> Iterable[Record]:
    at, subarray = BEGIN + second * SECOND, "mid-sdp/subarray/01"
    command = CommandMessage(
        id=command_id(at, second, "Scan"), device=subarray, command="Scan", argument={"scan_id": second},
        transaction_id=f"t{second}", issued=at, not_after=at + MINUTE, deadline=at + MINUTE, ceiling=at + 2 * MINUTE,
        repeatable=False, origin="subarray", operator="anna",
    )  # fmt: skip
    yield _at(command_record(command), at)


def _acks(second: int) -> Iterable[Record]:
    at, subarray = BEGIN + second * SECOND, "mid-sdp/subarray/01"
    outcome: tuple[CommandAckStatus, ...] = ("ACCEPTED", "IN_PROGRESS", "COMPLETED")
    for later, status in enumerate(outcome, 1):
        when, id = at + later * SECOND, command_id(at, second, "Scan")
        ack = AckMessage(id=id, device=subarray, command="Scan", status=status, time=when, origin="controller")
        yield _at(ack_record(ack), when)


def _alerts(second: int) -> Iterable[Record]:
    at, is_raised = BEGIN + second * SECOND, second // _EVERY % 2 == 0
    alert = Alert(
        condition="receiveOverrun", source=f"receive/{second % 7:04d}", severity="ALARM",
        state="ACTIVE" if is_raised else "CLEARED", text="lost",
        raised_at=at, sequence=second,
    )  # fmt: skip
    yield _at(alert_record(alert), at)


def _states(second: int) -> Iterable[Record]:
    at, key = BEGIN + second * SECOND, ("receiveOverrun", f"receive/{second % 7:04d}")
    state = states.UNACK if second // _EVERY % 2 == 0 else states.RTNUN
    alarm = Alarm(condition=key[0], source=key[1], state=state, through=1, severity="ALARM", raised_at=at)
    yield _at(state_record(key, alarm), at)


def _at(record: Record, at: Time) -> Record:
    return replace(record, timestamp_us=at)


async def play(port: int, number: int, seconds: int, asked: Asked, clock: Clock) -> None:
    """Play the night as one browser, a second each second, from a second that depends on its number."""
    node, second = _NODE.format(number % _STEADY_NODES), SPAN // 2 + number * 7919 % (seconds // 2)
    writers: dict[str, asyncio.StreamWriter] = {}
    readers: dict[str, asyncio.StreamReader] = {}
    used: dict[str, float] = {}

    async def ask(path: str, **given: Any) -> float:
        began = clock.monotonic()
        if began - used.get(path, -_IDLE) >= _IDLE:
            opened = asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.1.{number + 1}", 0))
            readers[path], writers[path] = await opened
        writers[path].write(f"GET /api/{path}?{urlencode(given)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with asyncio.timeout(_LONGEST):  # `wait_for` may ignore that the bench ends
            head = await readers[path].readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await readers[path].readexactly(int(length.partition(b":")[2]))
        used[path] = clock.monotonic()
        asked.questions += 1
        asked.refused += b" 200 " not in head.partition(b"\r\n")[0]
        return clock.monotonic() - began

    async def draw() -> None:
        known = happened = 0
        while True:
            grid = SPAN // BINS
            if (last := (second // grid // AHEAD + 1) * AHEAD * grid) != known:
                known = last
                for one in TRENDS:
                    begin, points = last - (BINS + AHEAD) * grid, BINS + AHEAD
                    await ask("history", device=node, attribute=one, begin=_text(begin), end=_text(last), points=points)
            if (last := -(-second // GRID)) != happened:
                happened, begin = last, (second - SPAN) // GRID * GRID
                await ask("timeline", device=node, begin=_text(begin), end=_text(last * GRID))
            await asyncio.sleep(1.0)

    try:
        await asyncio.sleep(number % LOOKING / LOOKING)
        asked.firsts.append(await ask("at", time=_text(second), device=node))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(draw())
            more, ahead, shown = None, 0, clock.monotonic()
            for step in count():
                if more is None and ahead < MOST_STEPS / 2:
                    given = {"time": _text(second + ahead + 1), "device": node, "step": 1, "count": MOST_STEPS}
                    more = tasks.create_task(ask("at", **given))
                await asyncio.sleep(max(0.0, (due := shown + 1.0) - clock.monotonic()))
                if more is not None and (more.done() or not ahead):
                    await more
                    more, ahead = None, ahead + MOST_STEPS
                shown = clock.monotonic()
                (asked.waits if step else asked.begins).append(shown - due)
                second, ahead = second + 1, ahead - 1
    finally:
        for writer in writers.values():
            writer.close()


async def _first_and_next(port: int, seconds: int, looks: int, clock: Clock) -> tuple[list[float], list[float]]:
    """Return the times of answers about first seconds, and waits for the next, of one browser after the other [s]."""
    firsts, nexts = list[float](), list[float]()
    for number in range(LOOKING, LOOKING + looks):
        asked = Asked()
        task = asyncio.create_task(play(port, number, seconds, asked, clock))
        while len(asked.waits) < _WAITS:
            if task.done():
                await task
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        firsts += asked.firsts
        nexts += asked.begins + asked.waits
    return firsts, nexts


def _serves(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def web_past(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    nodes, night = (4, 3600) if quick else (1500, 28_800)
    seconds = float(MOST_STEPS)  # once in this time, each browser asks for the next seconds
    with testbed.system("web-past", nodes=nodes, rack_size=500) as system:
        folder, port, clock = testbed.folder / "web-night", choose_port(), system.progress.clock
        testbed.progress.step(f"  a night of {night / 3600:g} h")
        make_night(folder, system, night)
        process = system.launch("web-past", "web", "--port", port, "--archive", folder)
        testbed.progress.demand(lambda: _serves(port), _BEGINS_WITHIN, "the operator's page")
        stream(system, RATE)
        firsts, steps = asyncio.run(_first_and_next(port, night, 5, clock))
        testbed.progress.step(f"  {BROWSERS} browsers, {LOOKING} of which play the night, for {seconds:g} s")
        asked = Asked()
        cost = asyncio.run(
            browsers(port, process.pid, seconds, [play(port, one, night, asked, clock) for one in range(LOOKING)])
        )
        system.processes.check()
    waits, whom = quantiles(asked.waits), f"{BROWSERS} browsers, {LOOKING} of which play the night"
    return BenchOutcome(
        what=f"the past on the operator's page: {night / 3600:g} archived hours, {nodes} nodes at {RATE:,.0f}"
        f" notifications/s, a command each {_EVERY} s",
        verdicts=(
            at_most(f"first answer about a second, slowest of {len(firsts)}", max(firsts), FIRST_BAR, "s"),
            at_most(f"wait for a next second, longest of {len(steps)}", max(steps), STEP_BAR, "s"),
            at_most(f"processor time with {whom}", cost.cores, CORE_BAR, "cores"),
            BarVerdict(f"memory with {whom}", f"{cost.memory:.0f} MB"),
            BarVerdict(
                f"longest waits as all {LOOKING} begin within a second",
                f"{max(asked.firsts):.1f} s for the first second, {max(asked.begins):.1f} s for the next one",
            ),
            at_most("p99 of the wait for a next second meanwhile", waits.p99 if waits else None, STEP_BAR, "s"),
            none_of("questions that were refused meanwhile", asked.refused, f" of {asked.questions}"),
        ),
    )


def _text(second: int) -> str:
    return utc_text(BEGIN + second * SECOND).replace("+00:00", "Z")
