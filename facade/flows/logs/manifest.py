"""Logs and metrics: the nodes' own reports, summed up for operators."""

from facade.kernel.manifest import FlowPage, Isolation, Manifest, Subcommand, WorkerEntry

MANIFEST = Manifest(
    name="logs",
    summary="Logs and metrics of the nodes of SDP, as real shippers send them: rates, errors, silent components.",
    topics={
        "logs": Isolation.READ_COMMITTED,
        "metrics": Isolation.READ_COMMITTED,
        "logs.summary": Isolation.READ_COMMITTED,
    },
    device_classes={"SdpLogs": "devices.kernel.base:FacadeDevice"},
    compose="facade.flows.logs.flow:compose",
    workers=(WorkerEntry("logs-aggregate", ("logs", "metrics"), ("logs", "aggregate"), "logsGone"),),
    subcommands=(
        Subcommand(("logs",), "", "Sum up logs and metrics of nodes.", section="Deploy"),
        Subcommand(("logs", "aggregate"), "facade.flows.logs.cli:aggregate", "Sum up logs and metrics, exactly-once."),
    ),
    log_export="facade.flows.logs.export:start",
    trials="facade.flows.logs.formats:trials",
    page=FlowPage(
        title="Logs",
        over=dict.fromkeys(("severityRecords", "severityRates"), "severities")
        | dict.fromkeys(("nodeTemperature", "nodeDiskUsed", "nodeMemoryUsed", "nodeLoad"), "nodes"),
    ),
)
