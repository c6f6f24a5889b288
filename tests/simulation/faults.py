"""Faults as data: drawn from a seed, applied to a site, left out one by one to find the few that matter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tests.simulation.broker import NUMBER_OF_DISKS, OFFSETS, TRANSACTIONS
from tests.simulation.mirroring import draw_telescope
from tests.simulation.site import Site
from tests.simulation.telescope import TELESCOPE


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    at: float
    """Simulated time [s]."""
    kind: str
    who: str = ""
    """Process, or part of the name of a request."""
    amount: float = 0.0
    """How long [s], or how much."""

    def __str__(self) -> str:
        return f"{self.at:9.3f} s  {self.kind} {self.who} {self.amount:.2f}".rstrip()


def _kill(site: Site, fault: Fault) -> None:
    if not site.processes[fault.who].is_dead:
        site.kill(fault.who, fault.amount)


def _stop(site: Site, fault: Fault) -> None:
    if not site.processes[fault.who].is_dead:
        site.processes[fault.who].stop(fault.amount)


def _ask(site: Site, fault: Fault) -> None:
    site.asked.add(fault.who)


def _disconnect(site: Site, fault: Fault) -> None:
    for link in list(site.network.links):
        if link.process.name == fault.who:
            link.drop()


def _hold(site: Site, fault: Fault) -> None:
    site.network.holds.append((fault.who, fault.amount))


def _overtake(site: Site, fault: Fault) -> None:
    site.network.overtakings.append((fault.who, round(fault.amount)))


def _lose(which: str) -> Callable[[Site, Fault], None]:
    return lambda site, fault: site.network.losses.append((fault.who, which))


def _kill_at(site: Site, fault: Fault) -> None:
    site.network.kills.append((fault.who, bool(fault.amount)))


def _down(site: Site, fault: Fault) -> None:
    if not site.network.is_down:
        site.network.go_down(fault.amount)


def _slow(site: Site, fault: Fault) -> None:
    site.network.slow_until = max(site.network.slow_until, site.scheduler.now + fault.amount)


def _late_marks(site: Site, fault: Fault) -> None:
    site.broker.marks_late = fault.amount
    site.scheduler.at(5.0, setattr, site.broker, "marks_late", 0.0)


def _stale_offsets(site: Site, fault: Fault) -> None:
    """Set a group back, as an administrator does, or a coordinator that lost the end of its log."""
    for group, offsets in site.broker.committed.items():
        if group.endswith(fault.who):
            site.broker.committed[group] = {place: round(at * fault.amount) for place, at in offsets.items()}


def _lose_offsets(site: Site, fault: Fault) -> None:
    for group in [one for one in site.broker.committed if one.endswith(fault.who)]:
        del site.broker.committed[group]


def _rebalance(site: Site, fault: Fault) -> None:
    site.groups.rebalance(site.settings.prefix + fault.who)


def _tidy(site: Site, fault: Fault) -> None:
    site.broker.tidy()


def _jump(site: Site, fault: Fault) -> None:
    site.processes[fault.who].clock.skew = fault.amount


def _fill(site: Site, fault: Fault) -> None:
    disk = int(fault.who)
    if disk not in site.broker.full:
        site.broker.fill(disk)
        _refuse(site)
        site.scheduler.at(fault.amount, _lead_elsewhere, site, disk)


def _lead_elsewhere(site: Site, disk: int) -> None:
    site.broker.lead_elsewhere(disk)
    _refuse(site)


def _refuse(site: Site) -> None:
    """Let coordinators that cannot write refuse what they are asked."""
    refused = [requests for place, requests in _COORDINATORS.items() if site.broker.is_full(place)]
    site.network.unserved = frozenset(one for requests in refused for one in requests)


CLOCKS: Mapping[str, Callable[[Site, Fault], None]] = {"clock jumps": _jump}
"""Of the wall clock of one host, which is then ahead of the others or behind."""
_BY_NTP = ("alerts", "subarray", "controller", "quality", "pipeline", "processor", "spooler")
"""Processes that judge delays, deadlines and ages by their own clock, or give times, which NTP keeps right."""

AIMED: Mapping[str, Callable[[Site, Fault], None]] = {"kill -9 at a request": _kill_at}
"""Kills between two steps that a kill at a random time seldom meets."""

STOPS: Mapping[str, Callable[[Site, Fault], None]] = {"ask to stop": _ask}
"""Of a worker, which is started again."""

DISKS: Mapping[str, Callable[[Site, Fault], None]] = {"disk full": _fill}
"""One of the brokers' disks: who writes to it is refused, nothing is read from it, and then others lead."""
_COORDINATORS = {
    OFFSETS: ("JoinGroup", "OffsetCommit", "OffsetFetch", "TxnOffsetCommit"),
    TRANSACTIONS: ("InitProducerId", "AddOffsetsToTxn", "AddPartitionsToTxn", "EndTxn"),
}
"""What coordinators are asked, and where they write."""


def _start_another(site: Site, fault: Fault) -> None:
    if not site.processes[fault.who].is_dead:
        site.start_another(fault.who, fault.amount)


SECONDS: Mapping[str, Callable[[Site, Fault], None]] = {"a second one": _start_another}
"""A process is started twice by mistake."""


_ONCE = ("source", "calibrator", "pipeline", "processor", "spooler")
"""Processes that are not ours to protect: of a component's name there is one."""


def _trouble(site: Site, fault: Fault) -> None:
    TELESCOPE[fault.kind](site.mirroring.telescope, site.scheduler.now, fault.who, fault.amount)


def _fill_ours(site: Site, fault: Fault) -> None:
    disk = site.disks[fault.who]
    disk.is_full = True
    site.scheduler.at(fault.amount, setattr, disk, "is_full", False)


def _kill_in_a_write(site: Site, fault: Fault) -> None:
    site.disks[fault.who].kills_in_a_write = True


OUR_DISKS: Mapping[str, Callable[[Site, Fault], None]] = {
    "own disk full": _fill_ours,
    "kill -9 in a write": _kill_in_a_write,
}
"""Of the hosts on which our processes keep something on disk."""


def _spoil(how: str) -> Callable[[Site, Fault], None]:
    return lambda site, fault: site.tabling.store.spoil(how)


def _slow_store(site: Site, fault: Fault) -> None:
    site.tabling.store.slow_until = site.scheduler.now + fault.amount


def _no_store(site: Site, fault: Fault) -> None:
    site.tabling.store.away_until = site.scheduler.now + fault.amount


PLACES: Mapping[str, Callable[[Site, Fault], None]] = {
    "table gone": _spoil("gone"),
    "table cut": _spoil("cut"),
    "table changed": _spoil("changed"),
    "slow store": _slow_store,
    "no store": _no_store,
}
"""Of the place to which tables refer."""
_WITH_DISK = ("spooler", "assembler")

ACTS: Mapping[str, Callable[[Site, Fault], None]] = {
    "kill -9": _kill,
    "kill -9 and stay away": _kill,
    "stand still": _stop,
    "disconnect": _disconnect,
    "hold a request": _hold,
    "overtake a request": _overtake,
    "lose a request": _lose("request"),
    "lose an answer": _lose("answer"),
    "no broker": _down,
    "slow network": _slow,
    "late marks": _late_marks,
    "group set back": _stale_offsets,
    "group's offsets lost": _lose_offsets,
    "rebalance": _rebalance,
    "compaction": _tidy,
    **CLOCKS,
    **AIMED,
    **STOPS,
    **DISKS,
    **SECONDS,
    **dict.fromkeys(TELESCOPE, _trouble),
    **OUR_DISKS,
    **PLACES,
}
"""What each kind of fault does."""

REQUESTS = ("EndTxn", "EndTxn", "EndTxn", "TxnOffsetCommit", "AddOffsetsToTxn", "AddPartitionsToTxn", "InitProducerId",
            "Produce", "OffsetFetch", "JoinGroup", "Metadata", "DescribeTopics", "ListOffsets")  # fmt: skip
"""Those that are held, overtaken and lost; the end of a transaction more often, as most depends on it."""


def draw(seed: int, seconds: float, per_second: float, names: list[str], groups: list[str]) -> list[Fault]:
    """Draw the faults of a run.

    Each seed has kinds of its own, about half of them: what one kind brings about, another one often hides.

    Parameters
    ----------
    names
        Processes that may be killed.
    """
    random, at, found = Random(f"faults-{seed}"), 0.0, []
    special = (*CLOCKS, *AIMED, *STOPS, *DISKS, *SECONDS, *OUR_DISKS, *PLACES, *TELESCOPE)
    usual = [kind for kind in ACTS if kind not in special]
    kinds = random.sample(usual, random.randint(2, len(usual) // 2))
    requests = random.sample(REQUESTS, random.choice((1, 2, len(REQUESTS))))
    while (at := at + random.expovariate(per_second)) < seconds:
        kind = random.choice(kinds)
        who, amount = "", 0.0
        match kind:
            case "kill -9" | "disconnect":
                who = random.choice(names)
            case "kill -9 and stay away":  # so long that others take over
                who, amount = random.choice(names), random.choice((7.0, 15.0))
            case "stand still":
                who, amount = random.choice(names), random.choice((0.2, 1.0, 4.0, 9.0))
            case "hold a request" | "lose a request" | "lose an answer":
                who, amount = random.choice(requests), random.choice((0.02, 0.15, 0.3, 1.0, 3.0))
            case "overtake a request":
                who, amount = random.choice(requests), random.randint(2, 25)
            case "no broker":
                amount = random.choice((0.1, 1.0, 4.0))
            case "slow network" | "late marks":
                amount = random.choice((0.2, 1.0, 3.0))
            case "group set back":
                who, amount = random.choice(groups), random.random()
            case "group's offsets lost" | "rebalance":
                who = random.choice(groups)
        found.append(Fault(round(at, 3), kind, who, amount))
    return found


def draw_jumps(seed: int, seconds: float, names: list[str]) -> list[Fault]:
    """Draw jumps of clocks, one in 20 s on average, for every third seed."""
    random, at, found = Random(f"clocks-{seed}"), 0.0, list[Fault]()
    while seed % 3 == 0 and (at := at + random.expovariate(0.05)) < seconds:
        who = random.choice([one for one in names if not one.startswith(_BY_NTP)])
        found.append(Fault(round(at, 3), "clock jumps", who, random.choice((-10.0, -1.0, 0.0, 1.0, 10.0))))
    return found


def draw_aimed(seed: int, seconds: float) -> list[Fault]:
    """Draw kills at a request, one in 4 s on average, for every second seed."""
    random, at, found = Random(f"aimed-{seed}"), 0.0, list[Fault]()
    while seed % 2 == 0 and (at := at + random.expovariate(0.25)) < seconds:
        found.append(Fault(round(at, 3), "kill -9 at a request", random.choice(REQUESTS), float(random.randint(0, 1))))
    return found


def draw_stops(seed: int, seconds: float, names: list[str]) -> list[Fault]:
    """Draw planned stops of workers, one in 15 s on average, for every third seed."""
    random, at, found = Random(f"stops-{seed}"), 0.0, list[Fault]()
    workers = [one for one in names if one.startswith(("aggregate", "logs-aggregate"))]
    while workers and seed % 3 == 1 and (at := at + random.expovariate(1 / 15)) < seconds:
        found.append(Fault(round(at, 3), "ask to stop", random.choice(workers), 0.0))
    return found


def draw_disks(seed: int, seconds: float) -> list[Fault]:
    """Draw disks of brokers that are full, one in 15 s on average, for every third seed."""
    random, at, found = Random(f"disks-{seed}"), 0.0, list[Fault]()
    while seed % 3 == 2 and (at := at + random.expovariate(1 / 15)) < seconds:
        who, amount = str(random.randrange(NUMBER_OF_DISKS)), random.choice((0.3, 1.0, 4.0, 8.0))
        found.append(Fault(round(at, 3), "disk full", who, amount))
    return found


def draw_own_disks(seed: int, seconds: float, names: list[str]) -> list[Fault]:
    """Draw disks of our hosts that are full, and kills in a write, one in 5 s on average, for two of three seeds."""
    random, at, found = Random(f"own disks-{seed}"), 0.0, list[Fault]()
    ours = [one for one in names if one.startswith(_WITH_DISK)]
    while ours and seed % 3 and (at := at + random.expovariate(1 / 5)) < seconds:
        kind, who = random.choice([*OUR_DISKS]), random.choice(ours)
        found.append(Fault(round(at, 3), kind, who, random.choice((0.5, 2.0, 8.0))))
    return found


def draw_places(seed: int, seconds: float) -> list[Fault]:
    """Draw what happens to tables that are sent as references, and to their place, one in 4 s on average."""
    random, at, found = Random(f"places-{seed}"), 0.0, list[Fault]()
    while (at := at + random.expovariate(1 / 4)) < seconds:
        found.append(Fault(round(at, 3), random.choice([*PLACES]), "", random.choice((1.0, 4.0, 12.0))))
    return found


def draw_seconds(seed: int, seconds: float, names: list[str]) -> list[Fault]:
    """Draw processes that are started twice, one in 12 s on average, for every fourth seed."""
    random, at, found = Random(f"seconds-{seed}"), 0.0, list[Fault]()
    ours = [one for one in names if not one.startswith(_ONCE)]
    while seed % 4 == 1 and (at := at + random.expovariate(1 / 12)) < seconds:
        found.append(Fault(round(at, 3), "a second one", random.choice(ours), random.choice((1.0, 5.0, 15.0))))
    return found


def draw_devices(seed: int, seconds: float) -> list[Fault]:
    """Draw what goes wrong with devices of the telescope."""
    return [Fault(*one) for one in draw_telescope(seed, seconds)]


def plan(site: Site, faults: list[Fault]) -> None:
    """Let faults happen at their times."""
    for fault in faults:
        site.scheduler.at(fault.at - site.scheduler.now, _happen, site, fault)


def _happen(site: Site, fault: Fault) -> None:
    site.trace.note("FAULT", f"{fault.kind} {fault.who} {fault.amount:.2f}")
    ACTS[fault.kind](site, fault)
