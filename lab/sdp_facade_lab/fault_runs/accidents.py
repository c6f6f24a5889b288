"""Accidents of the brokers of a local cluster.

An accident has a deed and a role. The role says which brokers it hits: it is looked up when the accident happens, as
leaders and coordinators move. A schedule of accidents follows from the seed.

The network between brokers is cut by rules of routing in a network of the run's own, which only root can make. Brokers
have a listener and a controller for each other, apart from the clients' listener: clients still reach a broker that its
peers cannot reach.

A disk is full when the kernel lets the process of the broker make no file longer: each write of a record then fails,
which to a broker is the same as no space left. The clock of a broker is wrong, and a certificate ends, by libfaketime.
"""

import ctypes
import os
import random
import re
import resource as limits
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from facade.infra import local
from facade.infra.local import BROKERS, ServiceName
from facade.infra.ports import HOST
from facade.infra.security import CERTIFICATE_DAYS
from facade.kernel.clock import Clock, wait_until
from facade.kernel.errors import InfraError
from facade.kernel.icd.topic_model import slot_name

KILL, STOP, WIPE, CUT = "kill -9 of", "standstill (SIGSTOP) of", "lost disk of", "no way for its peers to"
IN_TURN, APART, FULL = "kill -9 one after the other of", "no way between the controllers of", "full disk of"
CLOCK, CERTIFICATES = "clock 1 h ahead of", "certificates that end of"
CONTROLLER, ONE, TWO, ALL = "the active controller", "one broker", "two brokers", "all three brokers"
HEAPS, COMMANDS, ALERTS, TABLES = "heaps", "commands", "alerts", "tables"

WHOLE_WITHIN = 900.0
"""Longest time from the end of an accident until all replicas are in sync [s]."""
_AWAY, _CALM = (0.5, 8.0), (0.5, 2.0)
"""Shortest and longest time of an accident, and until the next one [s]. A broker that is silent for 3 s is given up."""
_IN_TURN_S = 5.0
"""Time between the ends of two brokers, and before the last one is started: the others then have newer records [s]."""
_CERTIFICATE_S = 60
"""How long the certificates that end are valid [s]: a busy machine needs a while to give them to all brokers."""
_FULL_AT = 1
"""Length beyond which a broker with a full disk cannot write a file [bytes]."""
_NOWHERE = "50"
"""Table of routes by which nothing arrives."""
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of unshare(2)."""
_BETWEEN_BROKERS = re.compile(r"\b(?:BROKERS|CONTROLLER)://[^:,\s]+:(\d+)")
_BETWEEN_CONTROLLERS = re.compile(r"\bCONTROLLER://[^:,\s]+:(\d+)")
_FAKETIME = Path("/usr/lib")


class Role(NamedTuple):
    """A partition whose leader is hit."""

    flow: str
    topic: str
    """One of Kafka's own has the partition by the hash of a name."""
    name: str = ""


ROLES: Mapping[str, Role] = {
    "the leader of ingest.heaps": Role(HEAPS, "ingest.heaps"),
    "the leader of ingest.summary": Role(HEAPS, "ingest.summary"),
    "the leader of commands": Role(COMMANDS, "commands"),
    "the leader of command-acks": Role(COMMANDS, "command-acks"),
    "the leader of alerts": Role(ALERTS, "alerts"),
    "the leader of alert-state": Role(ALERTS, "alert-state"),
    "the leader of calibration": Role(TABLES, "calibration"),
    "the coordinator of the group of workers": Role(HEAPS, "__consumer_offsets", "aggregate"),
    "the coordinator of the group of the controller": Role(COMMANDS, "__consumer_offsets", "simulated-controller"),
    "the coordinator of a worker's transactions": Role(HEAPS, "__transaction_state", slot_name("aggregate", "0")),
    "the coordinator of the assembler's transactions": Role(
        TABLES, "__transaction_state", slot_name("tables-assemble", "0")
    ),
}


class ClusterFault(NamedTuple):
    """One thing that happens to brokers."""

    deed: str
    to: str
    """A role, or which brokers."""
    seconds: float
    """How long the brokers are away, or cut off [s]."""
    calm: float
    """Time after the recovery until the next one [s]."""

    def __str__(self) -> str:
        return f"{self.deed} {self.to}"

    @property
    def leaves_no_two(self) -> bool:
        """Return whether, while it lasts, no two brokers are there that could confirm a record."""
        return self.to in (TWO, ALL) and self.deed not in (APART, CERTIFICATES)


KINDS = (
    *((deed, role) for role in ROLES for deed in (KILL, STOP)),
    *((deed, whom) for whom in (CONTROLLER, TWO) for deed in (KILL, STOP)),
    *((WIPE, whom) for whom in ("the leader of commands", CONTROLLER, ONE)),
    *((CUT, whom) for whom in ("the leader of ingest.heaps", "the leader of commands", CONTROLLER, ALL)),
    (IN_TURN, ALL),
    (APART, TWO),
    (FULL, ONE),
    (CLOCK, ONE),
    (CERTIFICATES, ALL),
)
"""Each comes once, in random order, then again."""


def kinds_here(*, can_cut: bool, secured: bool) -> list[tuple[str, str]]:
    """Return the kinds of accidents that are possible on this machine.

    Parameters
    ----------
    can_cut
        Whether the run has a network of its own.
    secured
        Whether brokers have certificates.
    """
    has_faketime = find_faketime() is not None
    possible = {CUT: can_cut, APART: can_cut, CLOCK: has_faketime, CERTIFICATES: has_faketime and secured}
    return [kind for kind in KINDS if possible.get(kind[0], True)]


def schedule(seed: int, count: int, kinds: Sequence[tuple[str, str]] = KINDS) -> list[ClusterFault]:
    """Return the accidents of a run; the same each time, and a shorter run is the beginning of a longer one."""
    chance, times = random.Random(seed), random.Random(f"{seed}/times")  # noqa: S311 - a schedule that can be repeated
    order: list[tuple[str, str]] = []
    while len(order) < count:
        order += chance.sample(kinds, len(kinds))
    return [ClusterFault(*kind, times.uniform(*_AWAY), times.uniform(*_CALM)) for kind in order[:count]]


def partition_of(name: str, partitions: int) -> int:
    """Return the partition of Kafka's own topics in which a group, or a transactional id, has its coordinator.

    It follows from the hash of the text as Java computes it.
    """
    return reduce(lambda code, letter: (31 * code + ord(letter)) & 0xFFFFFFFF, name, 0) % (1 << 31) % partitions


class Brokers:
    """The brokers of a local cluster, to which accidents happen.

    Parameters
    ----------
    state_dir
        Folder of the local infrastructure.
    admin
        Client that asks the cluster for its topics.
    prefixes
        Prefix of the topics of each flow.
    chance
        Chooses brokers and partitions where the role leaves a choice.
    step
        Is told what a person should read.
    """

    def __init__(
        self,
        state_dir: Path,
        admin: AdminClient,
        prefixes: Mapping[str, str],
        chance: random.Random,
        clock: Clock,
        step: Callable[[str], None],
    ) -> None:
        self._state_dir, self._admin, self._prefixes = state_dir, admin, prefixes
        self._chance, self._clock, self._step = chance, clock, step
        self._deeds = {
            STOP: self._frozen,
            CUT: self._cut,
            WIPE: self._wiped,
            IN_TURN: self._in_turn,
            APART: self._apart,
            FULL: self._full,
            CLOCK: self._ahead,
            CERTIFICATES: self._with_ended_certificates,
        }

    @contextmanager
    def suffer(self, fault: ClusterFault) -> Iterator[None]:
        """Let an accident happen; at the end of the block the brokers are as before, but perhaps not in sync yet.

        Raises
        ------
        InfraError
            A broker does not start again.
        """
        names = [BROKERS[number - 1] for number in self._hit(fault.to)]
        with self._deeds.get(fault.deed, self._dead)(names):
            yield

    def is_whole(self) -> bool:
        """Return whether all partitions have a leader, and all their replicas are in sync."""
        try:
            topics = self._admin.list_topics(timeout=5.0).topics.values()
        except KafkaException:
            return False
        found = [one for topic in topics for one in topic.partitions.values()]
        return all(one.leader > 0 and len(one.isrs) == len(one.replicas) for one in found)

    def _hit(self, to: str) -> list[int]:
        every = range(1, len(BROKERS) + 1)
        if to in (ONE, TWO, ALL):
            return self._chance.sample(every, (ONE, TWO, ALL).index(to) + 1)
        if to == CONTROLLER:
            return [active_controller([self._state_dir / name for name in BROKERS])]
        flow, topic, name = ROLES[to]
        prefix = self._prefixes[flow]
        topic = topic if name else prefix + topic
        partitions = self._admin.list_topics(timeout=WHOLE_WITHIN).topics[topic].partitions
        partition = partition_of(prefix + name, len(partitions)) if name else self._chance.randrange(len(partitions))
        return [partitions[partition].leader]

    @contextmanager
    def _dead(self, names: Sequence[ServiceName]) -> Iterator[None]:
        self._kill(names)
        yield
        self._start(names)

    @contextmanager
    def _wiped(self, names: Sequence[ServiceName]) -> Iterator[None]:
        with self._dead(names):
            for name in names:
                shutil.rmtree(self._state_dir / name / "data")
            yield

    @contextmanager
    def _in_turn(self, names: Sequence[ServiceName]) -> Iterator[None]:
        """Kill brokers in turn; the first one, with the oldest replicas, comes back before the last one."""
        for name in names:
            self._kill([name])
            self._clock.sleep(_IN_TURN_S)
        yield
        self._start(names[:-1])  # one controller alone does not answer
        self._clock.sleep(_IN_TURN_S)
        self._start(names[-1:])

    @contextmanager
    def _full(self, names: Sequence[ServiceName]) -> Iterator[None]:
        for pid in self._pids(names):
            limits.prlimit(pid, limits.RLIMIT_FSIZE, (_FULL_AT, limits.prlimit(pid, limits.RLIMIT_FSIZE)[1]))
        yield
        self._kill(names)
        self._start(names)

    @contextmanager
    def _ahead(self, names: Sequence[ServiceName]) -> Iterator[None]:
        """Start brokers again with a wrong clock, later with the right one: it comes from their environment."""
        self._kill(names)
        with faked_time("+1h"):
            self._start(names)
        yield
        self._kill(names)
        self._start(names)

    @contextmanager
    def _with_ended_certificates(self, names: Sequence[ServiceName]) -> Iterator[None]:
        """Let certificates end: open connections go on, new ones fail, also those by which they would be renewed."""
        with faked_time(f"{_CERTIFICATE_S - CERTIFICATE_DAYS * 86_400:+}s"):
            local.renew_certificates(self._state_dir, clock=self._clock)
        self._clock.sleep(_CERTIFICATE_S)
        yield
        endpoints = local.endpoints(self._state_dir)
        assert endpoints.security is not None
        endpoints.security.make(endpoints.bootstrap, endpoints.topic_prefix)
        self._kill(names)  # a broker that is started alone could not reach the others
        self._start(names)

    @contextmanager
    def _frozen(self, names: Sequence[ServiceName]) -> Iterator[None]:
        pids = self._pids(names)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def _cut(self, names: Sequence[ServiceName], ports: re.Pattern[str] = _BETWEEN_BROKERS) -> Iterator[None]:
        """Let no packet through to the ports that brokers have for each other."""
        texts = [(self._state_dir / name / "server.properties").read_text() for name in names]
        found = {port for text in texts for port in ports.findall(text)}
        rules = [("pref", "10", "ipproto", "tcp", "dport", port, "lookup", _NOWHERE) for port in found]
        for rule in rules:
            _ip("rule", "add", *rule)
        try:
            yield
        finally:
            for rule in rules:
                _ip("rule", "del", *rule)

    def _apart(self, names: Sequence[ServiceName]) -> AbstractContextManager[None]:
        """Cut two controllers off from each other; both reach the third one, which reaches none of them."""
        return self._cut(names, _BETWEEN_CONTROLLERS)

    def _pids(self, names: Sequence[ServiceName]) -> list[int]:
        return [line.pid for line in local.status(self._state_dir) if line.service in names and line.pid]

    def _kill(self, names: Sequence[ServiceName]) -> None:
        local.stop_services(self._state_dir, *names, kill=True, clock=self._clock)

    def _start(self, names: Sequence[ServiceName]) -> None:
        def start() -> bool:
            try:
                local.start_services(self._state_dir, *names, clock=self._clock)
            except InfraError as error:  # a busy machine; the brokers' log tells
                self._step(f"  {error}")
                return False
            return True

        if not wait_until(self._clock, start, WHOLE_WITHIN, 1.0):
            raise InfraError(f"{', '.join(names)}: do not start again within {WHOLE_WITHIN:g} s")


def find_faketime() -> Path | None:
    """Return the library that fakes the time of a process with threads; on Debian `apt install libfaketime`."""
    return next(iter(sorted(_FAKETIME.glob("*/faketime/libfaketimeMT.so.1"))), None)


@contextmanager
def faked_time(offset: str) -> Iterator[None]:
    """Let processes that this one starts in the block see another time of day; the monotonic clock stays right.

    Parameters
    ----------
    offset
        From the right time, as libfaketime has it, such as "+1h".
    """
    faked = {
        "LD_PRELOAD": str(find_faketime()),
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # with it, waits of Java's threads never end
    }
    before = {name: os.environ.get(name) for name in faked}
    os.environ.update(faked)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _QuorumState(msgspec.Struct):
    """What a controller keeps of the newest election that it knows."""

    leaderId: int  # noqa: N815 - Kafka's name
    leaderEpoch: int  # noqa: N815


def active_controller(folders: Sequence[Path]) -> int:
    """Return the number of the active controller, as the files of the brokers have it."""
    files = [folder / "data" / "__cluster_metadata-0" / "quorum-state" for folder in folders]
    states = [msgspec.json.decode(file.read_bytes(), type=_QuorumState) for file in files]
    return max((one for one in states if one.leaderId > 0), key=lambda one: one.leaderEpoch).leaderId


def take_own_network() -> bool:
    """Give this process, and all that it starts, a network of its own; False: that is not possible here."""
    if shutil.which("ip") is None or ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        return False
    _ip("link", "set", "lo", "up")
    _ip("rule", "add", "pref", "100", "lookup", "local")  # behind the rules that cut
    _ip("rule", "del", "pref", "0")
    # A packet is sent there and never heard of again, as one that a switch drops. A route that refuses it ("blackhole")
    # would tell the sender.
    _ip("link", "add", "nowhere", "type", "veth", "peer", "name", "end")
    Path("/proc/sys/net/ipv4/conf/nowhere/route_localnet").write_text("1")
    for name in ("nowhere", "end"):
        # An address of IPv6 would let the C library take this for a machine without IPv4.
        _ip("link", "set", name, "arp", "off", "addrgenmode", "none", "up")
    _ip("route", "add", "127.0.0.0/8", "dev", "nowhere", "src", HOST, "table", _NOWHERE)
    return True


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
