"""SdpMirror on a device server: its view of the mirror, its alarms, and its composition."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from facade.flows.mirror.choice import Choice
from facade.flows.mirror.device import MirroredAttribute
from facade.flows.mirror.messages import CONNECTED, MirrorWriter, device_of
from facade.flows.mirror.mirror import Mirror
from facade.flows.mirror.source import DeviceSource
from facade.flows.mirror.streaming import forms_of
from facade.kernel.clock import SECOND, Time
from facade.kernel.icd.model import Icd
from facade.kernel.instances import pattern_of
from facade.kernel.manifest import load
from facade.kernel.printable import excerpt, listed, printable
from facade.kernel.reading import Value
from facade.kernel.recent import MeanRate
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import Fault, FaultKey
from facade.kernel.runtime.view import NewestView
from facade.sdp.device_state import TOPIC as STATES
from facade.sdp.device_state import states_of

_RATE_OVER = 10 * SECOND
_MOST_NAMES = 8
_LONGEST_TEXT = 500
DISCONNECTED, CONFLICT = CONDITIONS = "mirrorDisconnected", "mirrorConflict"
"""Conditions of the ICD, with delays for a device that is away and for a second mirror."""
CLASS = "SdpMirror"
SOURCE = "devices.mirror:TangoSource"
"""The source that accesses the devices of the telescope; only `devices/` knows Tango."""


class MirrorView(NewestView):
    """A view: the state of this server's mirror."""

    what = "rules"

    def __init__(self, device: str, server: Server, mirror: Mirror, choice: Choice) -> None:
        super().__init__(device, server, choice.topic, STATES)
        self._mirror, self._choice = mirror, choice
        self._values, self._records = MeanRate(_RATE_OVER), MeanRate(_RATE_OVER)
        self._away: list[str] = []
        """Names of the devices that were disconnected at the last update."""
        self._others: list[MirrorWriter] = []

    def _look(self, now: Time) -> dict[str, Value]:
        mirror = self._mirror
        away, entries = mirror.disconnected(), list(mirror.entries.values())
        self._away = [entry.name for entry in away]
        self._others = mirror.writers.beside(mirror.own)
        present = [entry for entry in entries if entry.connection == CONNECTED]
        rules = [f"{name}: {' '.join(rule.patterns)}" for name, rule in sorted(self._choice.rules.items())]
        return {
            "mirrored": len(present),
            "polled": sum(entry.is_pushed is False for entry in present),
            "disconnected": len(away),
            "disconnectedAttributes": _lines(f"{one.name}: {one.newest.error}" for one in away if one.newest),
            "valuesRate": round(self._values.note(mirror.values, now), 1),
            "recordsRate": round(self._records.note(mirror.outbox.writer.records, now), 1),
            "latency": mirror.latency(),
            "gaps": mirror.gaps,
            "otherMirrors": _lines(one.incarnation for one in self._others),
            "recordsWaiting": mirror.outbox.waiting,
            "recordsFailed": mirror.outbox.writer.failed,
            "rules": _lines(rules),
            "rulesRefused": _lines(f"{one}: {why}" for one, why in sorted(mirror.refused().items())),
        }

    def _judge(self, now: Time) -> tuple[str, list[str]]:
        lines = [f"Attributes that are mirrored: {len(self._mirror.entries) - len(self._away)}."]
        if self._away:
            lines.append(f"Disconnected: {listed(self._away, _MOST_NAMES)}.")
        if self._others:
            names = ", ".join(one.incarnation or "of an older release" for one in self._others)
            lines.append(f"telescope.model is written by another mirror as well: {names}.")
        return "ALARM" if self._away or self._others else "ON", lines


def _lines(texts: "Iterator[str] | list[str]") -> tuple[str, ...]:
    return tuple(printable(text)[:_LONGEST_TEXT] for text in texts)


def find_faults(mirror: Mirror, device: str) -> Mapping[FaultKey, Fault] | None:
    """Return all faults of a device's mirror; None: the choice is not known yet."""
    away, others = find_disconnected(mirror), mirror.writers.beside(mirror.own)
    if away is None or not others:
        return away
    names = ", ".join(excerpt(one.incarnation) for one in others)
    text = f"telescope.model is also written by {len(others)} other mirrors, incarnation {names}"
    return {**away, (CONFLICT, device): Fault(text)}


def find_disconnected(mirror: Mirror) -> Mapping[FaultKey, Fault] | None:
    """Return the chosen devices that do not answer; None: the choice is not known yet."""
    if not mirror.has_chosen:
        return None
    away: defaultdict[str, list[MirroredAttribute]] = defaultdict(list)
    for entry in mirror.disconnected():
        away[device_of(entry.name)].append(entry)
    faults = {}
    for device, entries in sorted(away.items()):
        newest = entries[0].newest
        text = f"{len(entries)} attributes are not mirrored: {excerpt(newest.error) if newest else 'nobody answers'}"
        faults[DISCONNECTED, device] = Fault(text, values={"attributes": len(entries)})
    return faults


def compose(server: Server) -> None:
    """Add the mirror to a device server."""
    forms = forms_of(server.settings)
    device = server.only_device(CLASS)
    is_own = own_devices(server.icd)
    choice = Choice(is_own)
    server.flows.append(choice)
    if states_of(server) not in server.flows:
        server.flows.append(states_of(server))
    states_of(server).listeners.append(choice.take)

    topics = choice.topic, STATES

    def make() -> Mirror:
        source = server.share(DeviceSource, load(SOURCE))  # type: ignore[type-abstract]
        writer, incarnation = server.bus.writer(), server.sign_of_life.incarnation
        return Mirror(
            *(source, writer, choice),
            known=lambda: server.has_read(*topics),
            clock=server.clock,
            incarnation=incarnation,
            forms=forms,
        )

    mirror = server.share(Mirror, make)
    server.views.append(MirrorView(device, server, mirror, choice))
    server.report(lambda _: find_faults(mirror, device), lambda key: key[0] in CONDITIONS, *topics, others=device)
    server.threads.append(lambda stop: mirror.run(stop, server.bus))


def own_devices(icd: Icd) -> Callable[[str], bool]:
    """Return a function that recognizes the facade's own devices by name."""
    names: Iterable[str] = (pattern_of(one.device) for one in icd.classes.values())
    found = re.compile(rf"(?:tango://[^/]+/)?(?:{'|'.join(names)}|dserver/SdpFacade/.*)", re.IGNORECASE)
    return lambda device: found.fullmatch(device) is not None
