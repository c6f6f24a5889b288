"""Faults as data: drawn from a seed, applied to a site, left out one by one to find the few that matter.

A kind of fault is a row of `KINDS`: what it does, to whom, and for how long. Usual kinds come at any time. A row of
`APART` has faults of its own for some seeds only, with random numbers of its own.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from facade.flows.telemetry.plan import windowed
from facade.kernel.manifest import manifests
from tests.simulation.broker import NUMBER_OF_DISKS, OFFSETS, TRANSACTIONS
from tests.simulation.site import ICD, Site
from tests.simulation.telescope import DEVICES


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


# What each kind does

Act = Callable[[Site, Fault], None]


def _kill(site: Site, fault: Fault) -> None:
    if not site.processes[fault.who].is_dead:
        site.kill(fault.who, fault.amount)


def _stop(site: Site, fault: Fault) -> None:
    if not site.processes[fault.who].is_dead:
        site.processes[fault.who].stop(fault.amount)


def _start_another(site: Site, fault: Fault) -> None:
    if not site.processes[fault.who].is_dead:
        site.start_another(fault.who, fault.amount)


def _disconnect(site: Site, fault: Fault) -> None:
    for link in list(site.network.links):
        if link.process.name == fault.who:
            link.drop()


def _down(site: Site, fault: Fault) -> None:
    if not site.network.is_down:
        site.network.go_down(fault.amount)


def _slow(site: Site, fault: Fault) -> None:
    site.network.slow_until = max(site.network.slow_until, site.scheduler.now + fault.amount)


def _late_marks(site: Site, fault: Fault) -> None:
    site.broker.marks_late = fault.amount
    site.scheduler.at(5.0, setattr, site.broker, "marks_late", 0.0)


def _set_offsets(site: Site, fault: Fault) -> None:
    """Set a group on some partitions, as an administrator does, or a coordinator that lost the end of its log.

    Workers may not have committed yet. Controllers have no other position, so they are only set back.
    """
    random, group = Random(f"{fault.at} {fault.amount}"), site.settings.prefix + fault.who
    known = site.broker.committed.setdefault(group, {})
    topics = [one.reads(windowed(ICD)) for flow in manifests() for one in flow.workers if one.name == fault.who]
    ends = {
        (topic, partition.number): partition.end
        for topic in sorted(site.settings.prefix + name for name in (topics[0] if topics else ()))
        for partition in site.broker.topics[topic].partitions
    }
    for place, end in (ends or dict(known)).items():
        if random.random() < 0.5:
            known[place] = random.randint(0, end)


def _lose_offsets(site: Site, fault: Fault) -> None:
    random = Random(f"{fault.at} {fault.amount}")
    for known in (offsets for group, offsets in site.broker.committed.items() if group.endswith(fault.who)):
        for place in [one for one in known if random.random() < 0.7]:
            del known[place]


def _fill(site: Site, fault: Fault) -> None:
    """Let one of the brokers' disks refuse reads and writes until other brokers lead its partitions."""
    disk = int(fault.who)
    if disk not in site.broker.full:
        site.broker.fill(disk)
        _refuse(site)
        site.scheduler.at(fault.amount, _lead_elsewhere, site, disk)


def _lead_elsewhere(site: Site, disk: int) -> None:
    site.broker.lead_elsewhere(disk)
    _refuse(site)


_COORDINATORS = {
    OFFSETS: ("JoinGroup", "OffsetCommit", "OffsetFetch", "TxnOffsetCommit"),
    TRANSACTIONS: ("InitProducerId", "AddOffsetsToTxn", "AddPartitionsToTxn", "EndTxn"),
}
"""Requests to coordinators, by the partition to which they write."""


def _refuse(site: Site) -> None:
    refused = [requests for place, requests in _COORDINATORS.items() if site.broker.is_full(place)]
    site.network.unserved = frozenset(one for requests in refused for one in requests)


def _fill_ours(site: Site, fault: Fault) -> None:
    disk = site.disks[fault.who]
    disk.is_full = True
    site.scheduler.at(fault.amount, setattr, disk, "is_full", False)


def _lose(which: str) -> Act:
    return lambda site, fault: site.network.losses.append((fault.who, which))


def _spoil(how: str) -> Act:
    return lambda site, fault: site.tabling.store.spoil(how)


def _until(part: Callable[[Site], Any], name: str) -> Act:
    """Let a state of a part of the site last for a while."""
    return lambda site, fault: setattr(part(site), name, site.scheduler.now + fault.amount)


def _store(site: Site) -> Any:
    return site.tabling.store


def _telescope(site: Site) -> Any:
    return site.mirroring.telescope


# Whom they strike, and for how long

REQUESTS = ("EndTxn", "EndTxn", "EndTxn", "TxnOffsetCommit", "AddOffsetsToTxn", "AddPartitionsToTxn", "InitProducerId",
            "Produce", "OffsetFetch", "JoinGroup", "Metadata", "DescribeTopics", "ListOffsets")  # fmt: skip
"""Those that are held, overtaken and lost; the end of a transaction more often, as most depends on it."""


class Kind(NamedTuple):
    """One kind of fault."""

    act: Act
    who: str = ""
    """`process`, `request` or `group`; empty: nobody."""
    amounts: Sequence[float] = ()
    """Of which one is drawn; empty: none."""


KINDS: dict[str, Kind] = {
    "kill -9": Kind(_kill, "process"),
    "kill -9 and stay away": Kind(_kill, "process", (7.0, 15.0)),  # so long that others take over
    "stand still": Kind(_stop, "process", (0.2, 1.0, 4.0, 9.0)),
    "disconnect": Kind(_disconnect, "process"),
    "hold a request": Kind(
        lambda site, fault: site.network.holds.append((fault.who, fault.amount)), "request", (0.02, 0.15, 0.3, 1.0, 3.0)
    ),
    "overtake a request": Kind(
        lambda site, fault: site.network.overtakings.append((fault.who, round(fault.amount))), "request", range(2, 26)
    ),
    "lose a request": Kind(_lose("request"), "request", (0.02, 0.15, 0.3, 1.0, 3.0)),
    "lose an answer": Kind(_lose("answer"), "request", (0.02, 0.15, 0.3, 1.0, 3.0)),
    "no broker": Kind(_down, "", (0.1, 1.0, 4.0)),
    "slow network": Kind(_slow, "", (0.2, 1.0, 3.0)),
    "late marks": Kind(_late_marks, "", (0.2, 1.0, 3.0)),
    "group set": Kind(_set_offsets, "group"),
    "group's offsets lost": Kind(_lose_offsets, "group"),
    "rebalance": Kind(lambda site, fault: site.groups.rebalance(site.settings.prefix + fault.who), "group"),
    "compaction": Kind(lambda site, fault: site.broker.tidy()),
}
"""Usual kinds, of which each seed has some: what one kind brings about, another one often hides."""

_BY_NTP = ("alerts", "subarray", "controller", "quality", "pipeline", "processor", "spooler")
"""Processes that judge delays, deadlines and ages by their own clock, or give times, which NTP keeps right."""
_ONCE = ("source", "calibrator", "pipeline", "processor", "spooler")
"""Processes that are not ours to protect: of a component's name there is one."""


class Apart(NamedTuple):
    """Kinds of faults that some seeds have beside the usual ones."""

    name: str
    """Of the random numbers."""
    gap: float
    """Mean time between two [s]."""
    seeds: Callable[[int], bool]
    """Whether a seed has them."""
    acts: dict[str, Act]
    who: Callable[[list[str]], Sequence[str]] | None = None
    """Chooses from the names of the processes."""
    amounts: Sequence[float] = ()
    some: bool = False
    """Whether a seed has some of the kinds only."""
    flow: str = ""
    """The flow that they need."""


APART = (
    Apart(
        "clocks", 20.0, lambda seed: seed % 3 == 0,
        {"clock jumps": lambda site, fault: setattr(site.processes[fault.who].clock, "skew", fault.amount)},
        lambda names: [one for one in names if not one.startswith(_BY_NTP)], (-10.0, -1.0, 0.0, 1.0, 10.0),
    ),
    Apart(  # between two steps, which a kill at a random time seldom meets
        "aimed", 4.0, lambda seed: seed % 2 == 0,
        {"kill -9 at a request": lambda site, fault: site.network.kills.append((fault.who, bool(fault.amount)))},
        lambda _: REQUESTS, (0.0, 1.0),
    ),
    Apart(
        "stops", 15.0, lambda seed: seed % 3 == 1,
        {"ask to stop": lambda site, fault: site.asked.add(fault.who)},
        lambda names: [one for one in names if one.startswith(("aggregate", "logs-aggregate"))],
    ),
    Apart(
        "disks", 15.0, lambda seed: seed % 3 == 2, {"disk full": _fill},
        lambda _: [str(disk) for disk in range(NUMBER_OF_DISKS)], (0.3, 1.0, 4.0, 8.0),
    ),
    Apart(  # a process that is started twice by mistake
        "seconds", 12.0, lambda seed: seed % 4 == 1, {"a second one": _start_another},
        lambda names: [one for one in names if not one.startswith(_ONCE)], (1.0, 5.0, 15.0),
    ),
    Apart(
        "telescope", 4.0, lambda _: True,
        {
            "device away": lambda site, fault: site.mirroring.telescope.go_away(fault.who, fault.amount),
            "events lost": _until(_telescope, "deaf_until"),
            "events late": _until(_telescope, "late_until"),
            "subscriptions fail": _until(_telescope, "failing_until"),
            "devices are slow": _until(_telescope, "slow_until"),
        },
        lambda _: DEVICES, (0.05, 0.5, 2.0, 9.0), some=True, flow="mirror",
    ),
    Apart(  # of the hosts on which our processes keep something on disk
        "own disks", 5.0, lambda seed: seed % 3 != 0,
        {
            "own disk full": _fill_ours,
            "kill -9 in a write": lambda site, fault: setattr(site.disks[fault.who], "kills_in_a_write", True),
        },
        lambda names: [one for one in names if one.startswith(("spooler", "assembler"))], (0.5, 2.0, 8.0),
    ),
    Apart(  # of a call that then sends its action once more
        "actions", 8.0, lambda seed: seed % 2 == 1, {"lose the answer about an action": _lose("answer")},
        lambda _: ["-commands Produce s.alerts/"], flow="alerts",
    ),
    Apart(  # of the place to which tables refer
        "places", 4.0, lambda _: True,
        {
            "table gone": _spoil("gone"),
            "table cut": _spoil("cut"),
            "table changed": _spoil("changed"),
            "slow store": _until(_store, "slow_until"),
            "no store": _until(_store, "away_until"),
        },
        amounts=(1.0, 4.0, 12.0), flow="references",
    ),
)  # fmt: skip
"""Faults that would hide others, or are too rare, if they were drawn with the usual ones."""

ACTS = {name: kind.act for name, kind in KINDS.items()} | {name: act for one in APART for name, act in one.acts.items()}


def draw(
    seed: int, seconds: float, per_second: float, names: list[str], groups: list[str], flows: Collection[str]
) -> list[Fault]:
    """Draw the faults of a run, in the order of their times.

    Parameters
    ----------
    names
        Processes that may be killed.
    """
    found = _draw_usual(seed, seconds, per_second, names, groups)
    for one in APART:
        if one.seeds(seed) and (not one.flow or one.flow in flows):
            found += _draw_apart(one, seed, seconds, names)
    return sorted(found, key=lambda fault: fault.at)


def _draw_usual(seed: int, seconds: float, per_second: float, names: list[str], groups: list[str]) -> list[Fault]:
    random, at, found = Random(f"faults-{seed}"), 0.0, []
    kinds = random.sample([*KINDS], random.randint(2, len(KINDS) // 2))
    requests = random.sample(REQUESTS, random.choice((1, 2, len(REQUESTS))))
    struck = {"process": names, "request": requests, "group": groups}
    if "group set" in kinds:  # before the workers have committed anything
        found += [Fault(0.0, "group set", group, seed) for group in groups]
    while (at := at + random.expovariate(per_second)) < seconds:
        name = random.choice(kinds)
        kind = KINDS[name]
        who = random.choice(struck[kind.who]) if kind.who else ""
        amount = random.choice(kind.amounts) if kind.amounts else random.random() if name == "group set" else 0.0
        found.append(Fault(round(at, 3), name, who, amount))
    return found


def _draw_apart(one: Apart, seed: int, seconds: float, names: list[str]) -> list[Fault]:
    random, at, found = Random(f"{one.name}-{seed}"), 0.0, list[Fault]()
    struck = [""] if one.who is None else one.who(names)
    kinds = random.sample([*one.acts], random.randint(1, len(one.acts))) if one.some else [*one.acts]
    while struck and (at := at + random.expovariate(1 / one.gap)) < seconds:
        kind = random.choice(kinds) if len(one.acts) > 1 else kinds[0]
        who = "" if one.who is None else random.choice(struck)
        found.append(Fault(round(at, 3), kind, who, random.choice(one.amounts) if one.amounts else 0.0))
    return found


def plan(site: Site, faults: list[Fault]) -> None:
    """Let faults happen at their times."""
    for fault in faults:
        site.scheduler.at(fault.at - site.scheduler.now, _happen, site, fault)


def _happen(site: Site, fault: Fault) -> None:
    site.trace.note("FAULT", f"{fault.kind} {fault.who} {fault.amount:.2f}")
    ACTS[fault.kind](site, fault)
