"""What a device server needs for SdpAlerts, and for the alerts that any device server raises itself."""

from collections.abc import Callable, Sequence

from facade.errors import ConfigError
from facade.flows.alerts import messages
from facade.flows.alerts.flow import AlertsFlow
from facade.flows.alerts.operator_api import OperatorApi
from facade.flows.alerts.reporter import OwnAlerts, ReportedBefore
from facade.flows.alerts.view import AlertsView
from facade.runtime.composition import FindFaults, Server
from facade.runtime.flow import FaultKey

CLASS = "SdpAlerts"


def compose(server: Server) -> None:
    """Add the alerts to a device server.

    Raises
    ------
    ConfigError
        There are several devices: their events would be pushed twice.
    """
    device, *more = server.devices[CLASS]
    if more:
        raise ConfigError(f"devices of {CLASS} in instance {server.instance}: expected one, got {device} and {more}")
    flow = AlertsFlow(server.icd, device)
    server.flows.append(flow)
    server.effects, server.is_eager = flow, True

    def known() -> bool:
        return server.has_read(messages.ALERTS)

    server.views.append(AlertsView(server.icd, flow, server.bus.health, known, server.version))
    server.share(
        OperatorApi,
        lambda: OperatorApi(
            flow,
            server.sender(),
            ready=known,
            origin=server.instance,
            clock=server.clock,
            timeout=server.settings.command_timeout,
        ),
    )


def reporter(
    server: Server, find: FindFaults, finds: Callable[[FaultKey], bool], topics: Sequence[str], others: str
) -> OwnAlerts:
    """Raise and clear alerts about what is found; see `facade.runtime.composition.Server.report`."""
    if (before := server.find(ReportedBefore)) is None:
        # What an earlier life has told may not be among the states yet. Each life counts on from the time of its start,
        # so that no number is given to two alerts.
        before = server.share(ReportedBefore, lambda: ReportedBefore(round(server.clock.now() * 1e6)))
        server.flows.append(before)
    topics = (*topics, before.topic)
    made = OwnAlerts(
        find,
        before,
        server.bus.writer(),
        mine=finds,
        known=lambda: server.has_read(*topics),
        clock=server.clock,
        others=others,
    )
    server.periodic_tasks.append(made)
    return made
