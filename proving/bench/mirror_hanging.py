"""The telescope model beside devices that hang: what the values of 1,400 devices pay for 100 others."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import tango

from facade.bus.kafka.producer import KafkaWriter
from facade.bus.port import BusHealth
from facade.flows.mirror.messages import MirrorRule, rule_record
from facade.infra.ports import HOST
from proving.bench.mirror_roles import FAMILY, SERVER, Followed
from proving.bench.report import Outcome, Verdict, at_most, quantiles
from proving.deployment import Deployment
from proving.testbed import Testbed

GOOD, STOPPED, SLOW, ODD = 1400, 50, 20, 30
"""Devices: good ones; stopped ones; ones that take 2 s for a read; silent, of garbage and refusing, ten of each."""
SLOWNESS = 2.0
"""[s]"""
_WITHIN = 300.0


def mirror_hanging(testbed: Testbed, *, quick: bool) -> Outcome:
    """Mirror good devices alone, and beside bad ones."""
    share, seconds = (10, 20.0) if quick else (1, 60.0)
    good, stopped, slow, odd = (count // share for count in (GOOD, STOPPED, SLOW, ODD))
    with testbed.deployment("mirror-hanging", without="") as made, _odd_servers(odd) as names:
        made.register()
        kinds = {FAMILY: (good, 0.0), "bench/stopped": (stopped, 0.0), "bench/slow": (slow, SLOWNESS)}
        roles = [
            made.play("dishes", name=f"dishes-{number}", devices=count, attributes=1, family=family,
                      instance=str(number), slowness=slowness)
            for number, (family, (count, slowness)) in enumerate(kinds.items())
        ]  # fmt: skip
        try:
            for role in roles:
                made.await_ready(role, _WITHIN)
            made.server("mirror")
            progress = testbed.progress
            progress.demand(lambda: made.answers("mirror"), _WITHIN, "the device server mirror")
            _write_rule(made, [f"{FAMILY}/*/a*"])
            progress.demand(lambda: _figure(made, "mirrored") >= good, _WITHIN, "all has been read")
            for role in roles:
                role.release()
            alone = made.result(made.play("follow-mirror", name="alone", ends=True, seconds=seconds), Followed)
            _write_rule(made, [f"{FAMILY}/*/a*", "bench/stopped/*/a*", "bench/slow/*/a*", *names])
            progress.demand(lambda: _figure(made, "mirrored") >= good + stopped, _WITHIN, "the others, too")
            os.kill(roles[1].pid, signal.SIGSTOP)
            beside = made.result(made.play("follow-mirror", name="beside", ends=True, seconds=seconds), Followed)
            disconnected = _figure(made, "disconnected")
        finally:
            with suppress(ProcessLookupError):
                os.kill(roles[1].pid, signal.SIGCONT)
            database = tango.Database(*made.tango_host.split(":"))
            for number in range(len(kinds)):
                database.delete_server(f"{SERVER}/{number}")
    before, after = quantiles(alone.latencies), quantiles(beside.latencies)
    slower = after.p99 / before.p99 if before and after else None
    rates = [one.records / one.seconds for one in (alone, beside)]
    return Outcome(
        name="mirror-hanging",
        what=f"{good} Tango attributes on the bus, pushed once a second, beside {stopped + slow + odd} bad devices",
        how=(
            f"{stopped} devices of a server that is stopped (SIGSTOP) before the second measurement, {slow} that take"
            f" {SLOWNESS:g} s for a read, {odd} whose servers are silent, send garbage or refuse",
            f"{seconds:g} s without them, {seconds:g} s beside them; from the push of a value to its record",
        ),
        verdicts=(
            at_most("seconds for a value, beside / alone", rates[0] / rates[1] if rates[1] else None, 1.05, "times"),
            at_most("p99 of push to record, beside / alone", slower, 1.5, "times"),
            Verdict(
                what=f"values missing without a word, of {beside.records:,}",
                bar="0",
                found=f"{beside.unsaid}; said: {beside.gaps}, alone {alone.gaps}",
                reached=beside.unsaid == 0,
            ),
            Verdict(what="alone", bar="", found=before.text(1e3, "ms") if before else "-"),
            Verdict(what="beside", bar="", found=after.text(1e3, "ms") if after else "-"),
            Verdict(what="attributes that are said to be disconnected", bar="", found=str(disconnected)),
        ),
        figures={"alone": rates[0], "beside": rates[1], "disconnected": disconnected},
    )


def _write_rule(made: Deployment, patterns: list[str]) -> None:
    writer = KafkaWriter(made.connection, health=BusHealth(), client="rule")
    writer.send_durably(rule_record(MirrorRule(rule="bench", patterns=patterns, time=1, origin="bench")), 30.0)


def _figure(made: Deployment, name: str) -> int:
    (device,) = made.devices("SdpMirror")
    try:
        return int(made.proxy(device).read_attribute(name).value or 0)
    except tango.DevFailed:
        return 0


@contextmanager
def _odd_servers(count: int) -> Iterator[list[str]]:
    """Give attributes of devices whose servers are silent, send garbage, or refuse, as many of each."""
    servers = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in servers]
    for one in servers[::3]:
        one.close()
    for one in servers[1::3]:
        threading.Thread(target=_send_garbage, args=(one,), daemon=True).start()
    try:
        yield [f"tango://{HOST}:{port}/bench/odd/{number}#dbase=no/a000" for number, port in enumerate(ports)]
    finally:
        for one in servers:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _send_garbage(server: socket.socket) -> None:
    kept = []
    with suppress(OSError):  # it is closed at the end
        while True:
            connection, _ = server.accept()
            kept.append(connection)
            with suppress(OSError):
                connection.sendall(os.urandom(4096))
