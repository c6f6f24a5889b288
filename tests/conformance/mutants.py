"""Deliberately wrong systems: what is different from the ICD, and which checks must be red because of it.

All of them are served at once, each in an entry of its own: a check that is red for another reason than its own
mutant is seen as one too many.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import Limits

Alter = Callable[[Icd], Icd]


@dataclass(frozen=True)
class Mutant:
    """One thing that is wrong."""

    what: str
    red: tuple[str, ...]
    """Patterns of the ids of the checks that must fail, and of no others."""
    alter: Alter = lambda icd: icd
    """Makes the ICD that is served; what cannot be said in an ICD, `fake` does."""


def attribute(device_class: str, name: str, **changes: object) -> Alter:
    return _entries(device_class, "attributes", name, lambda one: (replace(one, **changes),))


def without(device_class: str, kind: str, name: str) -> Alter:
    return _entries(device_class, kind, name, lambda one: ())


def _entries(device_class: str, kind: str, name: str, change: Callable) -> Alter:
    def alter(icd: Icd) -> Icd:
        found = icd.classes[device_class]
        entries = getattr(found, kind)
        assert any(one.name == name for one in entries), f"{device_class} has no {name}"
        changed = tuple(new for one in entries for new in (change(one) if one.name == name else (one,)))
        return replace(icd, classes={**icd.classes, device_class: replace(found, **{kind: changed})})

    return alter


def enum(device_class: str, name: str, *labels: str) -> Alter:
    def alter(icd: Icd) -> Icd:
        own = f"{name}Labels"
        return attribute(device_class, name, enum=own)(replace(icd, enums={**icd.enums, own: labels}))

    return alter


def topic(name: str, **changes: object) -> Alter:
    return lambda icd: replace(icd, topics={**icd.topics, name: replace(icd.topics[name], **changes)})


def command(device_class: str, name: str, **changes: object) -> Alter:
    return _entries(device_class, "commands", name, lambda one: (replace(one, **changes),))


def query(device_class: str, name: str, **changes: object) -> Alter:
    return _entries(device_class, "queries", name, lambda one: (replace(one, **changes),))


MASTER, SUBARRAY, BUS, NODE = "SdpMaster", "SdpSubarray", "SdpBus", "SdpIngestNode"
ALERTS, QUALITY, TABLES = "SdpAlerts", "SdpQuality", "SdpCalibration"

MUTANTS = (
    Mutant("type", ("SdpMaster/nodesReporting/type",), attribute(MASTER, "nodesReporting", type="DevLong64")),
    Mutant("length", ("SdpMaster/healthInfo/dimensions",), attribute(MASTER, "healthInfo", length=32)),
    Mutant("height", ("SdpQuality/noiseBaseline/dimensions",), attribute(QUALITY, "noiseBaseline", height=100)),
    Mutant("access", ("SdpSubarray/adminMode/access",), attribute(SUBARRAY, "adminMode", access="READ")),
    Mutant("unit", ("SdpBus/workersAlive/unit",), attribute(BUS, "workersAlive", unit="nodes")),
    Mutant("label", ("SdpMaster/heapRate/label",), attribute(MASTER, "heapRate", label="Rate")),
    Mutant("description", ("SdpBus/streams/description",), attribute(BUS, "streams", description="All.")),
    Mutant("format", ("SdpMaster/heapsTotal/format",), attribute(MASTER, "heapsTotal", format="%8d")),
    Mutant("display level", ("SdpAlerts/alertsSkewed/level",), attribute(ALERTS, "alertsSkewed", expert=False)),
    Mutant(
        "limit",
        ("SdpMaster/packetLossFraction/limits",),
        attribute(MASTER, "packetLossFraction", limits=Limits(max_warning=1e-3, max_alarm=2e-2)),
    ),
    Mutant(
        "a limit that the ICD has not",
        ("SdpMaster/packetsLost/limits",),
        attribute(MASTER, "packetsLost", limits=Limits(max_alarm=1.0)),
    ),
    Mutant(
        "enum label", ("SdpMaster/healthState/enum",), enum(MASTER, "healthState", "OK", "POOR", "FAILED", "UNKNOWN")
    ),
    Mutant(
        "enum value out of range",
        ("SdpAlerts/worstSeverity/enum", "SdpAlerts/worstSeverity/value"),
        enum(ALERTS, "worstSeverity", "NONE", "INFO", "WARNING", "ALARM", "CRITICAL", "WORSE"),
    ),
    Mutant(
        "missing attribute",
        ("SdpIngestNode/channelCount/*", "SdpIngestNode/mid-sdp/ingest/0000/names"),
        without(NODE, "attributes", "channelCount"),
    ),
    Mutant(
        "missing command",
        ("SdpMaster/Disable/*", "SdpMaster/mid-sdp/control/0/names"),
        without(MASTER, "commands", "Disable"),
    ),
    Mutant(
        "missing query",
        ("SdpAlerts/GetAlertHistory/*", "SdpAlerts/mid-sdp/alerts/0/names"),
        without(ALERTS, "queries", "GetAlertHistory"),
    ),
    Mutant("command's argument", ("SdpSubarray/EndScan/types",), command(SUBARRAY, "EndScan", argument="scan")),
    Mutant("query's result", ("SdpAlerts/Shelve/types",), query(ALERTS, "Shelve", result="DevLong")),
    Mutant(
        "query's description",
        ("SdpAlerts/Unshelve/description",),
        query(ALERTS, "Unshelve", result_description="Something."),
    ),
    Mutant("answer that is no JSON", ("SdpCalibration/ListTables/answer",)),
    Mutant("answer of another kind", ("SdpAlerts/GetAlarms/answer",)),
    Mutant("refusal without a reason", ("SdpAlerts/Reset/refusal",)),
    Mutant("bad argument that is taken", ("SdpAlerts/Comment/refusal",)),
    Mutant("value that is not the reported one", ("SdpMaster/adminMode/on-bus",)),
    Mutant("time in the future", ("SdpMaster/latencyP99/value",)),
    Mutant("never ATTR_INVALID", ("SdpIngestNode/latencyMin/fresh",)),
    Mutant("too many events", ("SdpBus/ingestHeapsRate/pace",)),
    Mutant("no events", ("SdpMaster/nodesExpected/events",)),
    Mutant("events by polling", ("SdpMaster/versionId/events",)),
    Mutant("version of the ICD", ("icd/version",)),
    Mutant("missing topic", ("topics/heartbeats/*",)),
    Mutant("partitions", ("topics/commands/partitions",), topic("commands", partitions=3)),
    Mutant(
        "cleanup policy",
        ("topics/state/cleanup.policy",),
        topic("state", cleanup="delete"),
    ),
    Mutant("retention", ("topics/alerts/retention.ms",), topic("alerts", retention=3600.0)),
    Mutant("largest record", ("topics/snapshots/max.message.bytes",), topic("snapshots", max_bytes=1_048_576)),
    Mutant("timestamps", ("topics/tables/message.timestamp.type",), topic("tables", timestamp="CreateTime")),
    Mutant(
        "further setting",
        ("topics/alert-state/segment.ms",),
        lambda icd: topic("alert-state", config={**icd.topics["alert-state"].config, "segment.ms": "70000"})(icd),
    ),
    Mutant("record that is no JSON", ("topics/command-acks/records",)),
    Mutant("header that is not as its schema says", ("topics/quality/records",)),
    Mutant("dead letter without a reason", ("topics/dead-letters/records",)),
    Mutant("packet that is no Avro", ("topics/alert-packets/records",)),
    Mutant("record without a key", ("topics/alert-packets/keys",)),
    Mutant(
        "state of a condition",
        ("SdpAlerts/storageLow/enum",),
        enum(ALERTS, "storageLow", "NORM", "ALARM"),
    ),
    Mutant("missing device", ("SdpQuality/devices",)),
    Mutant("device that nobody serves", ("SdpIngestNode/mid-sdp/ingest/0001/*",)),
    Mutant("another instance", ("SdpCalibration/instance",)),
)


def served(icd: Icd) -> Icd:
    for mutant in MUTANTS:
        icd = mutant.alter(icd)
    topics = {name: one for name, one in icd.topics.items() if name != "heartbeats"}
    return replace(icd, topics=topics)
