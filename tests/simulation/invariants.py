"""What must hold in every run: a table, with the rule of the design beside each."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from facade.flows.alerts.flow import AlertsFlow
from facade.flows.logs.messages import TOPICS
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.accounts import RunningAccount
from facade.sdp.stream_accounts import WorkerAccounts
from tests.simulation.measuring import differences
from tests.simulation.shown import alarms, stale
from tests.simulation.site import Site

WORKERS = ("aggregate-0", "aggregate-1")


class Invariant(NamedTuple):
    """Something that must hold."""

    name: str
    rule: str
    """Of the design, section 4."""
    find: Callable[[Site], Iterable[str]]
    """Returns what is wrong."""
    flow: str = ""
    """What must run for it to be looked at; empty: nothing particular."""

    def failures(self, site: Site) -> list[str]:
        """Return what is wrong, with name and rule."""
        found = self.find(site) if not self.flow or self.flow in site.flows else ()
        return [f"{self.name} ({self.rule}): {text}" for text in found]


def _totals(site: Site) -> Iterator[str]:
    for node in range(site.settings.nodes if "ingest-00" in site.servers else 0):
        device = f"mid-sdp/ingest/{node:04d}"
        total = site.value(device, "heapsTotal") or 0
        if total != site.sent[node]:
            yield f"node {node}: sent {site.sent[node]}, {device} shows {total}"


def _accounts(site: Site) -> Iterator[str]:
    control = site.servers["control"]
    for flow in control.flows:
        if isinstance(flow, WorkerAccounts) and (stream := flow.streams.get("ingest.heaps")) is not None:
            account = stream.account
            if account.consumed != sum(site.sent.values()):
                yield f"ingest.heaps: sent {sum(site.sent.values())}, consumed by the accounts {account.consumed}"
            if account.overlap or account.skipped:
                yield f"ingest.heaps: overlap {account.overlap}, skipped {account.skipped}: {account.deviations}"


def _worker_accounts(site: Site) -> Iterator[str]:
    for flow in site.servers["control"].flows:
        for topic in TOPICS if isinstance(flow, WorkerAccounts) else ():
            account = flow.streams[topic].account if topic in flow.streams else RunningAccount()
            if (sent := site.shipping.sent(topic)) != account.consumed:
                yield f"{topic}: sent {sent}, consumed by the accounts {account.consumed}"
            if account.overlap or account.skipped:
                yield f"{topic}: overlap {account.overlap}, skipped {account.skipped}: {account.deviations}"


def _mirrored(site: Site) -> Iterator[str]:
    yield from site.mirroring.differences(site)
    yield from (line for line in site.trace.lines if "mirroring failed" in line)


def _balances(site: Site) -> Iterator[str]:
    for instance, server in site.servers.items():
        for topic, account in server.event_loop.accounts.items():
            if account.balance:
                yield f"{instance}: {topic} has balance {account.balance}"


_TABLES = (b"no-space", b"unavailable", b"missing", b"size", b"digest")
"""Why tables fail that are judged by `Tabling`."""


def _letters(site: Site, *, is_action: bool) -> list[bytes]:
    """Return the dead letters: those of actions that were impossible once they were on the log, or all others.

    Of a table for which an assembler had no room there is one each time, and of one that is not at its place. Those of
    aborted transactions do not count.
    """
    seen = (entry for entry in site.entries("dead-letters") if entry.attempt is None)
    reasons = ((entry, dict(entry.headers).get("dl.reason")) for entry in seen)
    return [one.value or b"" for one, reason in reasons if reason not in _TABLES and (reason == b"action") is is_action]


def _dead_letters(site: Site) -> Iterator[str]:
    letters = _letters(site, is_action=False)
    if letters:
        yield f"{len(letters)} dead letters, and all that was sent is good: {letters[0]}"


def _crashes(site: Site) -> Iterator[str]:
    for name, error in site.crashes:
        yield f"{name} ended: {error!r}"


def _commands(site: Site) -> Iterator[str]:
    commanding = site.commanding
    site.controllers.look(site)
    for server in site.servers.values():
        commanding.look(server)
    yield from commanding.wrong
    begun: dict[tuple[str, str, str], str] = {}
    for id in commanding.executed:
        transaction = commanding.given[id].transaction
        if (other := begun.setdefault(transaction, id)) != id:
            yield f"{' '.join(transaction)} was executed twice, as {other} and as {id}"
    for id, times in commanding.executed.items():
        one = commanding.given[id]
        if len(times) > 1 and not one.repeatable:
            yield f"{one.name} {id} was executed {len(times)} times, and must not be repeated"
        if one.sent == "not sent":
            yield f"{one.name} {id} was executed, and its caller was told that it will not be"


def _announced(site: Site) -> Iterator[str]:
    site.tabling.look(site)
    yield from site.tabling.wrong
    if "references" in site.flows and "calibration" in site.servers:
        yield from site.tabling.held(site)


def _tables(site: Site) -> Iterator[str]:
    if "calibration" in site.servers:
        yield from site.tabling.missing(site)
    if "references" in site.flows:
        yield from site.tabling.not_held(site)


def _actions(site: Site) -> Iterator[str]:
    alerting = site.alerting
    seen = Counter(alerting.actions)
    (flow,) = (one for one in site.servers["alerts"].flows if isinstance(one, AlertsFlow))
    # Another action was faster, or the alarm went: the operator is told, and nothing happened.
    overtaken = [one.value for one in site.entries("alerts") if flow.base + one.offset + 1 in flow._refusals]
    refused = {msgspec.json.decode(one)["id"] for one in (*overtaken, *_letters(site, is_action=True))}
    for id, what in alerting.acted.items():
        if id not in seen and id not in refused:
            yield f"{what} was confirmed, and no client saw it"
    yield from (f"action {id} was seen {times} times" for id, times in seen.items() if times > 1)


def _alerts(site: Site) -> Iterator[str]:
    alerting = site.alerting
    seen = Counter(key for _, key in alerting.seen)
    yield from (f"alert {key} was confirmed, and no client saw it" for key in alerting.raised if key not in seen)
    doubled = site.servers.keys() & {one.name for one in site.others}
    for key, times in seen.items():
        # Two servers of one name report the same faults, under the same numbers.
        if times > 1 and key is not None and not (doubled and key not in alerting.raised):
            yield f"alert {key} was seen {times} times"


def _outcomes(site: Site) -> Iterator[str]:
    for id, one in site.commanding.given.items():
        if one.sent == "sent" and not one.outcome:
            yield f"{one.name} {id} of {one.device} has no outcome"
        if one.outcome == "REJECTED" and id in site.commanding.executed and id not in site.commanding.declined:
            yield f"{one.name} {id} is REJECTED, and was executed"
        if one.outcome == "COMPLETED" and id not in site.commanding.executed:
            yield f"{one.name} {id} is COMPLETED, and was never executed"


ALWAYS = (
    Invariant("no event comes faster than the ICD says", "rule 7", lambda site: site.pace.found),
    Invariant("a client sees alerts in their order", "rule 6", lambda site: site.alerting.wrong),
    Invariant("each record ends as exactly one of used, late, suppressed, dead-lettered", "rule 1", _balances),
    Invariant("a table is announced once, and only whole", "rule 3", _announced),
    Invariant(
        "what a producer keeps on disk is sent once", "rule 3", lambda site: site.spooling.repeated(site), "spools"
    ),
    Invariant("no process ends by itself", "rule 1", _crashes),
    Invariant("a command has one outcome, is not begun late, nor twice if it must not be", "rule 5", _commands),
    Invariant(
        "no state is told of a command that has ended", "rule 5", lambda site: site.controllers.late(site), "commands"
    ),
)
"""Checked each simulated second."""
AT_THE_END = (
    Invariant("totals are what was sent", "rule 3", _totals),
    Invariant("accounts say what was sent, with no overlap and no hole", "rules 3 and 15", _accounts),
    Invariant("a client sees each alert once", "rule 6", _alerts),
    Invariant("alarms are as the log gives them from its beginning on", "rule 4", alarms, "alerts"),
    Invariant("a client sees each action of an operator once", "rule 6", _actions, "alerts"),
    Invariant("each table that was sent is announced, and the newest of its product shown", "rule 3", _tables),
    Invariant("the newest metric of each name is shown as it was sent", "rule 4", differences, "quality"),
    Invariant("accounts of logs and metrics say what was sent", "rules 3 and 15", _worker_accounts, "logs"),
    Invariant("sums of logs are what was sent", "rule 3", lambda site: site.shipping.differences(site), "logs"),
    Invariant(
        "each block's state shown is the one that was confirmed last",
        "rule 4",
        lambda site: site.processing.differences(site),
        "blocks",
    ),
    Invariant("what a producer has kept is sent, or counted as missing", "rule 3", lambda site: site.spooling.lost()),
    Invariant("each command has an outcome", "rule 5", _outcomes),
    Invariant(
        "the state of a device is the one that a controller has told last",
        "rule 4",
        lambda site: site.controllers.misplaced(site),
        "commands",
    ),
    Invariant(
        "each order has an outcome, and what is done has all its orders done",
        "rule 5",
        lambda site: site.controllers.unordered(site),
        "commands",
    ),
    Invariant(
        "newest values of the telescope are right, and none is missing unsaid", "rules 3 and 15", _mirrored, "mirror"
    ),
    Invariant("what is good is used", "rule 1", _dead_letters),
)
"""Hold within a bounded time once no more faults come."""
IN_SILENCE = (Invariant("what nobody has told for longer than the ICD says is INVALID", "rule 2", stale),)
"""Hold once nothing has come for longer than any limit of the ICD."""


class NeverFall:
    """Totals never fall (rule 3); told of each reading.

    A server that was killed shows its snapshot first, for a moment, with the time of that: older than what was shown.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._most: dict[tuple[str, str], tuple[float, float]] = {}
        """Value and time, by device and attribute."""

    def watch(self, device: str, attribute: str, before: Reading | None, now: Reading) -> None:
        if attribute.endswith("Total") and now.quality is not Quality.INVALID and isinstance(now.value, int | float):
            most, at = self._most.get((device, attribute), (0, 0.0))
            if now.value < most and now.time >= at:
                self.found.append(f"{device}/{attribute} fell from {most} to {now.value}")
            elif now.value >= most:
                self._most[device, attribute] = now.value, now.time
