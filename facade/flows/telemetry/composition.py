"""What a device server needs for the attributes that name windowed topics, on devices of any class."""

from collections.abc import Iterator, Mapping, Sequence

from facade.config import Settings
from facade.flows.telemetry.flow import Shown, TelemetryFlow
from facade.flows.telemetry.ledger import Ledger
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import Plan, plans
from facade.flows.telemetry.view import TelemetryView
from facade.icd.model import Icd
from facade.instances import device_number
from facade.racks import Racks
from facade.runtime.composition import Server


def compose(server: Server) -> None:
    """Add the flows for all attributes that name windowed topics to a device server."""
    server.share(Telemetry, lambda: Telemetry(server))


class Telemetry:
    """The flows of a device server, one for each summary topic that one of its devices needs.

    Raises
    ------
    ConfigError
        A device name does not say which group it stands for, or the deployment has no such group.
    """

    def __init__(self, server: Server) -> None:
        by_summary: dict[str, dict[str, Plan]] = {}
        for topic, plan in plans(server.icd).items():
            by_summary.setdefault(plan.window.summary, {})[topic] = plan
        found = (_flow(server, summary, plans_) for summary, plans_ in by_summary.items())
        self._flows = [flow for flow in found if flow is not None]
        server.flows += self._flows

    def ledgers(self) -> Iterator[Ledger]:
        """Return what is kept of each topic."""
        for flow in self._flows:
            yield from flow.ledgers.values()

    def over_all(self) -> Iterator[tuple[Ledger, frozenset[Group]]]:
        """Return what is kept of each topic that is shown over all groups, with those in the window that is shown."""
        for flow in self._flows:
            yield from ((flow.ledgers[topic], groups) for topic, groups in flow.reporting.items())


def _flow(server: Server, summary: str, known: Mapping[str, Plan]) -> TelemetryFlow | None:
    icd, settings = server.icd, server.settings
    shown: list[Shown] = []
    groups: dict[str, list[Group | None]] = {}
    for class_name, names in server.devices.items():
        device_class = icd.classes[class_name]
        sources = {one.source.topic for one in device_class.attributes if one.source is not None}
        for topic in sorted(known.keys() & sources):
            plan = known[topic]
            for device in names:
                group: Group | None = "" if plan.one_group else None
                if device_class.family:
                    group = device_number(device_class, device, settings)
                shown.append(Shown(device, topic, TelemetryView(device_class, plan, group)))
                groups.setdefault(topic, []).append(group)
    if not shown:
        return None
    kept = {topic: _kept(known[topic], found, settings) for topic, found in groups.items()}
    partitions = _partitions(icd, settings, summary, [(known[topic], found) for topic, found in kept.items()])
    read = range(icd.topics[summary].partitions) if partitions is None else partitions
    ledgers = {
        topic: Ledger(
            known[topic],
            kept[topic],
            per_group=any(group is not None for group in found),
            over_all=None in found,
            summaries=read,
        )
        for topic, found in groups.items()
    }
    racks = Racks(settings.rack_size, icd.topics[summary].partitions)
    return TelemetryFlow(summary, known, ledgers, shown, partitions, racks)


def _kept(plan: Plan, groups: Sequence[Group | None], settings: Settings) -> Sequence[Group]:
    """Return the groups that a ledger keeps: the devices' own, or all; none: any."""
    own = [group for group in groups if group is not None]
    return own if len(own) == len(groups) else plan.groups(settings)


def _partitions(
    icd: Icd, settings: Settings, summary: str, kept: Sequence[tuple[Plan, Sequence[Group]]]
) -> list[int] | None:
    """Return the partitions that have the summaries of some groups; None: all."""
    if not all(plan.window.groups == "node" for plan, _ in kept):
        return None
    racks = Racks(settings.rack_size, icd.topics[summary].partitions)
    found = racks.partitions_of(node for _, groups in kept for node in groups if isinstance(node, int))
    return None if len(found) == racks.partitions else found
