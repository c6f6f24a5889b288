"""What a device server needs for SdpLogs: the sums, what is shown of them, and their alerts."""

from facade.errors import ConfigError
from facade.flows.logs.flow import RISING, SILENT, LogFlow
from facade.flows.logs.view import LogsView
from facade.runtime.composition import Server

CLASS = "SdpLogs"


def compose(server: Server) -> None:
    """Add logs and metrics to a device server.

    Raises
    ------
    ConfigError
        There are several devices: each fault would be reported twice.
    """
    device, *more = server.devices[CLASS]
    if more:
        raise ConfigError(f"devices of {CLASS} in instance {server.instance}: expected one, got {device} and {more}")
    flow = LogFlow()
    server.flows.append(flow)

    def known() -> bool:
        return server.has_read(flow.topic)

    entry, health = server.icd.classes[CLASS], server.bus.health
    server.views.append(LogsView(device, entry, flow.ledger, health, known=known, version=server.version))
    server.report(flow.find, lambda key: key[0] in (RISING, SILENT), flow.topic, others=device)
