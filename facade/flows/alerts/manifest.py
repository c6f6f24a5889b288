"""Alerts: SDP's reports to operators, as alarms by IEC 62682."""

from facade.kernel.manifest import Isolation, Manifest, Subcommand, WorkerEntry

MANIFEST = Manifest(
    name="alerts",
    summary="Alerts of SDP as alarms: raised by anything, numbered, acknowledged and shelved by operators.",
    topics={
        # Not only committed records: an open transaction of a killed intake worker would hold up all alerts.
        "alerts": Isolation.READ_UNCOMMITTED,
        "alert-actions": Isolation.READ_COMMITTED,
        "alert-packets": Isolation.READ_COMMITTED,
        "alert-notifications": Isolation.READ_COMMITTED,
        "alert-state": Isolation.READ_COMMITTED,
    },
    set_aside_by={"alert-state": "control"},
    device_classes={"SdpAlerts": "devices.alerts:SdpAlerts"},
    compose="facade.flows.alerts.composition:compose",
    health="facade.flows.alerts.reporter:AlarmsHealth",
    reporter="facade.flows.alerts.reporter:reporter",
    alert_source="facade.flows.alerts.source:AlertSource",
    workers=(WorkerEntry("alerts-intake", ("alert-packets",), ("alerts", "intake"), "intakeGone"),),
    processes={"alerts-notify": ("alerts", "notify", "RULES.toml")},
    audit={"alert-actions": "facade.flows.alerts.audit:action_entry"},
    subcommands=(
        Subcommand(
            ("alerts",), "", "Look at alarms and deal with them; follow alerts, and take those that come as packets."
        ),
        Subcommand(("alerts", "attachment"), "facade.flows.alerts.cli:attachment", "Fetch one attachment of an alert."),
        Subcommand(
            ("alerts", "intake"), "facade.flows.alerts.cli:intake", "Read alert packets, and write their alerts."
        ),
        Subcommand(
            ("alerts", "notify"), "facade.flows.alerts.cli:notify", "Tell people elsewhere of unacknowledged alarms."
        ),
        Subcommand(("simulate", "alerts"), "facade.flows.alerts.simulator.cli:alerts", "Simulate sources of alerts."),
    ),
    trials="facade.flows.alerts.packets:trials",
    conformance="sdp_facade_clients.conformance.alarm_checks:ALARMS",
)
