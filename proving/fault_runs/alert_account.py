"""The account of the fault run: what was sent, what the client got, and how the alarms stand. No I/O."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proving.fault_runs.alert_scenario import Standing
from proving.fault_runs.follower import FollowerReport
from proving.fault_runs.frame import Account

_SHOWN = 5
"""Of what is wrong in the same way, so many are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What everyone says."""

    sent: Sequence[tuple[str, bytes]]
    """Source and digest of all records, in the order of the log."""
    refused: Collection[int] = ()
    """Numbers of those that are actions which came too late."""
    received: Sequence[tuple[int, bytes]]
    """Sequence number and digest of what the client got, in its order."""
    client: FollowerReport
    wanted: Mapping[tuple[str, str], Standing]
    """All alarms as what was sent says."""
    shown: Sequence[Mapping[str, Any]]
    """GetAlarms."""


def account(found: Found) -> Account:
    """Compare all."""
    made, client = Account(), found.client
    place = {digest: number for number, (_, digest) in enumerate(found.sent, 1) if number not in found.refused}
    got = Counter(digest for _, digest in found.received)
    lost = [number for digest, number in place.items() if digest not in got]
    foreign = [sequence for sequence, digest in found.received if digest not in place]
    doubled = [place.get(digest, 0) for digest, count in got.items() if count > 1]
    disorder = _disorder(found, place)
    misnumbered = [sequence for sequence, digest in found.received if place.get(digest, sequence) != sequence]
    states = _states(found)
    made.rows += [
        ("alerts and actions sent", len(found.sent)),
        ("... actions that came too late, and must not be shown", len(found.refused)),
        ("received by the client", len(found.received)),
        ("... by event", client.by_event),
        ("... filled by GetAlertsSince", client.by_page),
        ("sent again, and taken once", client.again),
        ("events that came before what belongs before them", client.overtaken),
        ("events for which the slow client had no room", client.overflowed),
        ("subscriptions made", client.renewed),
        ("lost", len(lost)),
        ("given to the client twice", len(doubled)),
        ("out of order at the client, for their source", len(disorder)),
        ("received, and never sent", len(foreign)),
        ("alarms compared", len(found.wanted)),
        ("... in another state", len(states)),
    ]
    made.wrong += _named("was sent and never received: number", lost)
    made.wrong += _named("was given to the client twice: number", doubled)
    made.wrong += _named("was received and never sent: number", foreign)
    made.wrong += _named("came to the client after a later one of its source: number", disorder)
    made.wrong += _named("has another number at the client than on the log: number", misnumbered)
    made.wrong += states
    made.wrong += [f"the client was told of a loss: {text}" for text in client.lost]
    if client.unusable:
        made.wrong.append(f"{client.unusable} events could not be read")
    return made


def _disorder(found: Found, place: Mapping[bytes, int]) -> list[int]:
    newest: dict[str, int] = {}
    late = []
    for _, digest in found.received:
        number = place.get(digest)
        if number is None:
            continue
        source = found.sent[number - 1][0]
        if number < newest.get(source, 0):
            late.append(number)
        newest[source] = max(number, newest.get(source, 0))
    return late


def _states(found: Found) -> list[str]:
    """Hold each alarm of the device against what was sent."""
    shown = {(one["condition"], one["source"]): one for one in found.shown}
    wrong = []
    for key, alarm in found.wanted.items():
        one = shown.pop(key, None)
        here = f"alarm {key[0]} of {key[1]}"
        if alarm.state == "NORM" or one is None:
            if (alarm.state == "NORM") != (one is None):
                wrong.append(f"{here}: expected {alarm.state}, got {'NORM' if one is None else one['state']}")
            continue
        wanted = (alarm.state, alarm.severity, alarm.occurrence, alarm.text)
        got = (one["state"], one["severity"], one["occurrence"], one["text"])
        if got != wanted:
            wrong.append(f"{here}: expected {wanted}, got {got}")
    return wrong + [f"alarm {condition} of {source}: nobody raised it" for condition, source in shown]


def _named(what: str, numbers: Sequence[int]) -> list[str]:
    more = [f"... and {len(numbers) - _SHOWN:,} more"] if len(numbers) > _SHOWN else []
    return [f"{what} {number}" for number in numbers[:_SHOWN]] + more
