"""The shipped interface is clean, and each check can fail."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from facade.cli.app import app
from facade.codec.json_schema import compile_message
from facade.icd.load import CHECKS, THOROUGH_CHECKS, check, inspect, load
from facade.icd.model import AccountSource, Attribute, Icd, Sampling
from facade.icd.topic_model import Limits, Operation, RecordHeader, Role
from facade.icd.units import UNITS, unit_of

Edit = Callable[[Icd], Icd]
NODE, SUBARRAY, MASTER = "SdpIngestNode", "SdpSubarray", "SdpMaster"
ALL = {one.__name__: one for one in CHECKS + THOROUGH_CHECKS}


@pytest.fixture(scope="module")
def icd() -> Icd:
    """Load what is shipped."""
    return load()


def attribute(name: str, owner: str = NODE, /, **changes: Any) -> Edit:
    """Change keys of one attribute; those of its source by ``source_`` and the key."""

    def edit(icd: Icd) -> Icd:
        was = icd.classes[owner]
        assert name in [one.name for one in was.attributes]
        attributes = tuple(changed(one, changes) if one.name == name else one for one in was.attributes)
        classes = {**icd.classes, owner: msgspec.structs.replace(was, attributes=attributes)}
        return msgspec.structs.replace(icd, classes=classes)

    return edit


def changed(one: Attribute, changes: dict[str, Any]) -> Attribute:
    plain = {key: value for key, value in changes.items() if not key.startswith("source_")}
    of_source = {key.removeprefix("source_"): value for key, value in changes.items() if key not in plain}
    if of_source:
        plain["source"] = msgspec.structs.replace(one.source, **of_source)
    return msgspec.structs.replace(one, **plain)


def command(name: str, owner: str = SUBARRAY, /, **changes: Any) -> Edit:
    """Change keys of one command."""
    return _entry("commands", name, owner, changes)


def query(name: str, owner: str = SUBARRAY, /, **changes: Any) -> Edit:
    """Change keys of one query."""
    return _entry("queries", name, owner, changes)


def _entry(kind: str, name: str, owner: str, changes: dict[str, Any]) -> Edit:
    def edit(icd: Icd) -> Icd:
        entries = getattr(icd.classes[owner], kind)
        assert name in [one.name for one in entries]
        edited = tuple(msgspec.structs.replace(one, **changes) if one.name == name else one for one in entries)
        return device_class(owner, **{kind: edited})(icd)

    return edit


def device_class(name: str = NODE, /, **changes: Any) -> Edit:
    def edit(icd: Icd) -> Icd:
        classes = {**icd.classes, name: msgspec.structs.replace(icd.classes[name], **changes)}
        return msgspec.structs.replace(icd, classes=classes)

    return edit


def executor(**changes: Any) -> Edit:
    """Change keys of an executor, or of its command with ``command_`` before the key."""

    def edit(icd: Icd) -> Icd:
        was = icd.executors["ProcessingController"]
        plain = {key: value for key, value in changes.items() if not key.startswith("command_")}
        of_it = {key.removeprefix("command_"): value for key, value in changes.items() if key not in plain}
        if of_it:
            plain["commands"] = (msgspec.structs.replace(was.commands[0], **of_it),)
        changed = {**icd.executors, "ProcessingController": msgspec.structs.replace(was, **plain)}
        return msgspec.structs.replace(icd, executors=changed)

    return edit


_EXECUTOR = "executors.toml: executors[ProcessingController]"


def topic(name: str, /, **changes: Any) -> Edit:
    """Change keys of one topic; those of its window by ``window_`` and the key."""

    def edit(icd: Icd) -> Icd:
        was = icd.topics[name]
        plain = {key: value for key, value in changes.items() if not key.startswith("window_")}
        window = {key.removeprefix("window_"): value for key, value in changes.items() if key not in plain}
        if window:
            plain["window"] = msgspec.structs.replace(was.window, **window)
        return msgspec.structs.replace(icd, topics={**icd.topics, name: msgspec.structs.replace(was, **plain)})

    return edit


def role(name: str, /, **changes: Any) -> Edit:
    """Add a role."""
    one = Role(**{"description": "It works.", "side": "facade", **changes})
    return lambda icd: msgspec.structs.replace(icd, roles={**icd.roles, name: one})


def message(path: str, value: Any, name: str = "heap") -> Edit:
    """Set a value deep in a schema; None removes the key."""

    def edit(icd: Icd) -> Icd:
        schema = copy.deepcopy(icd.messages[name])
        *parents, last = path.split("/")
        part = schema
        for step in parents:
            part = part[step]
        if value is None:
            del part[last]
        else:
            part[last] = value
        return msgspec.structs.replace(icd, messages={**icd.messages, name: schema})

    return edit


def argument(path: str, value: Any, family: str = "assignres", version: str = "0.4") -> Edit:
    """Set a value deep in the schema of an argument; None removes the key."""

    def edit(icd: Icd) -> Icd:
        schemas = copy.deepcopy(icd.arguments)
        *parents, last = path.split("/")
        part = schemas[family][version]
        for step in parents:
            part = part[step]
        if value is None:
            del part[last]
        else:
            part[last] = value
        return msgspec.structs.replace(icd, arguments=schemas)

    return edit


def without(*topics: str) -> Edit:
    """Leave out topics."""
    return lambda icd: msgspec.structs.replace(
        icd, topics={name: one for name, one in icd.topics.items() if name not in topics}
    )


def whole(**changes: Any) -> Edit:
    return lambda icd: msgspec.structs.replace(icd, **changes)


def renamed_topic(icd: Icd) -> Icd:
    return msgspec.structs.replace(icd, topics={**icd.topics, "a b": icd.topics["state"]})


WIDE = Sampling(shortest=5.0, longest=10.0)

ACCOUNT = AccountSource(stream="state", figure="lag")


def at(name: str, key: str, owner: str = NODE) -> str:
    """Return the place of a key of an attribute, as a finding names it."""
    return f"{owner}.toml: attributes[{name}].{key}"


def of_command(name: str, key: str, owner: str = SUBARRAY) -> str:
    return f"{owner}.toml: commands[{name}].{key}"


def of_query(name: str, key: str, owner: str = SUBARRAY) -> str:
    return f"{owner}.toml: queries[{name}].{key}"


def condition(key: str, value: Any, name: str = "streamSilent") -> Edit:
    """Change a key of one alarm condition."""

    def edit(icd: Icd) -> Icd:
        conditions = {**icd.conditions, name: msgspec.structs.replace(icd.conditions[name], **{key: value})}
        return msgspec.structs.replace(icd, conditions=conditions)

    return edit


def of_condition(key: str, name: str = "streamSilent") -> str:
    return f"conditions.toml: conditions[{name}].{key}"


# check, edit, where it must point
FAILING: list[tuple[str, Edit, str]] = [
    ("version_is_semantic", whole(version="one"), "icd.toml: version"),
    ("enums_have_labels", whole(enums={"A": ("X", "X")}), "enums.toml: enums[A]"),
    ("enums_have_labels", whole(enums={"A": ()}), "enums.toml: enums[A]"),
    ("condition_texts_are_complete", condition("label", " "), of_condition("label")),
    ("condition_texts_are_complete", condition("response", "Do it"), of_condition("response")),
    *(("condition_texts_are_complete", condition(key, ""), of_condition(key)) for key in ("check", "ends")),
    ("condition_texts_are_complete", condition("causes", ()), of_condition("causes")),
    ("condition_texts_are_complete", condition("causes", ("Rain", "Hail.")), of_condition("causes[0]")),
    ("condition_delays_are_possible", condition("on_delay", -1.0), of_condition("on_delay")),
    ("condition_delays_are_possible", condition("off_delay", 1e6), of_condition("off_delay")),
    ("condition_delays_are_possible", condition("re_alarm", 1e6), of_condition("re_alarm")),
    ("condition_growths_are_more_than_once", condition("re_alarm_growth", 1.0), of_condition("re_alarm_growth")),
    ("suppressors_exist", condition("suppressed_by", ("nobody",)), of_condition("suppressed_by")),
    ("suppressors_exist", condition("suppressed_by", ("streamSilent",)), of_condition("suppressed_by")),
    ("topic_messages_exist", topic("alerts", also=("nothing",)), "topics.toml: topics[alerts].also"),
    ("topic_messages_exist", topic("alerts", also=("alert",)), "topics.toml: topics[alerts].also"),
    ("records_are_described", topic("state", message=None), "topics.toml: topics[state]"),
    ("records_are_described", topic("logs", bytes={}), "topics.toml: topics[logs]"),
    ("records_are_described", topic("quality", bytes={"name": "Metric"}), "topics.toml: topics[quality]"),
    (
        "records_are_described",
        topic("quality", header=RecordHeader(name="metric", message="metrics")),
        "topics.toml: topics[quality].header.message",
    ),
    *(
        (
            "operations_are_of_the_topic",
            topic("state", operations=(Operation(action=action, summary="", **{key: value}),)),
            f"topics.toml: topics[state].operations[0].{key}",
        )
        for action, key, value in (
            ("send", "roles", ("mirror",)),
            ("receive", "roles", ("quality",)),
            ("send", "messages", ("heap",)),
            ("send", "reply", "answers"),
        )
    ),
    ("class_texts_are_complete", device_class(name="lower"), "lower.toml: name"),
    ("class_texts_are_complete", device_class(description="No stop"), f"{NODE}.toml: description"),
    ("device_patterns_are_names", device_class(device="a/b"), f"{NODE}.toml: device"),
    ("device_patterns_are_names", device_class(device="a/b/{rack}"), f"{NODE}.toml: device"),
    ("device_patterns_are_names", device_class(device="a/b/{node.real}"), f"{NODE}.toml: device"),
    ("device_patterns_are_names", device_class(device="a/b/{node:s}"), f"{NODE}.toml: device"),
    ("device_patterns_are_names", device_class(device="a/b/{}"), f"{NODE}.toml: device"),
    ("device_patterns_are_names", device_class(device="a//{node}"), f"{NODE}.toml: device"),
    ("device_patterns_are_names", device_class(device="a/{subarray}/{node}"), f"{NODE}.toml: device"),
    ("device_patterns_are_names", device_class(device="a/b/{subarray:s}"), f"{NODE}.toml: device"),
    ("instance_patterns_are_names", device_class(instance="x/{rack}"), f"{NODE}.toml: instance"),
    ("instance_patterns_are_names", device_class(instance="x-{node}"), f"{NODE}.toml: instance"),
    ("device_patterns_are_unique", device_class(device="MID-sdp/bus/0"), f"{NODE}.toml: device"),
    ("numbers_are_finite", device_class(stale_after=float("inf")), f"{NODE}.toml: stale_after"),
    (
        "numbers_are_finite",
        attribute("heapRate", limits=Limits(max_alarm=float("nan"))),
        at("heapRate", "limits.max_alarm"),
    ),
    (
        "numbers_are_finite",
        topic("ingest.heaps", window_disorder=float("inf")),
        "topics.toml: topics[ingest.heaps].window.disorder",
    ),
    ("names_are_lower_camel_case", attribute("heapRate", name="heap_rate"), at("heap_rate", "name")),
    ("names_are_lower_camel_case", attribute("heapRate", name="HeapRate"), at("HeapRate", "name")),
    ("names_are_not_tangos", attribute("heapRate", name="state"), at("state", "name")),
    ("names_are_not_tangos", attribute("heapRate", name="status"), at("status", "name")),
    ("names_are_unique", attribute("heapRate", name="latencymean"), at("latencyMean", "name")),
    ("labels_are_unique", attribute("heapRate", label="latency, MEAN"), at("latencyMean", "label")),
    ("texts_are_complete", attribute("heapRate", label=" "), at("heapRate", "label")),
    ("texts_are_complete", attribute("heapRate", description=""), at("heapRate", "description")),
    ("enums_exist", attribute("adminMode", "SdpMaster", enum="Adm"), at("adminMode", "enum", "SdpMaster")),
    ("enums_exist", attribute("adminMode", "SdpMaster", enum=None), at("adminMode", "enum", "SdpMaster")),
    ("enums_exist", attribute("heapRate", enum="AdminMode"), at("heapRate", "enum")),
    ("lengths_are_positive", attribute("heapRate", length=-1), at("heapRate", "length")),
    (
        "spectra_can_be_pushed",
        attribute("nodesSilent", "SdpMaster", length=2048),
        at("nodesSilent", "length", "SdpMaster"),
    ),
    ("images_have_rows", attribute("heapRate", height=-1), at("heapRate", "height")),
    ("images_have_rows", attribute("heapRate", height=2), at("heapRate", "height")),
    ("units_are_known", attribute("heapRate", unit="furlong"), at("heapRate", "unit")),
    (
        "limits_are_for_numbers",
        attribute("connected", "SdpBus", limits=Limits(max_alarm=1)),
        at("connected", "limits", "SdpBus"),
    ),
    (
        "limits_are_for_numbers",
        attribute("nodesSilent", "SdpMaster", limits=Limits(max_alarm=1)),
        at("nodesSilent", "limits", "SdpMaster"),
    ),
    (
        "limits_are_for_numbers",
        attribute("heapsTotal", limits=Limits(max_alarm=1.5)),
        at("heapsTotal", "limits.max_alarm"),
    ),
    (
        "limits_are_ordered",
        attribute("heapRate", limits=Limits(max_warning=2, max_alarm=1)),
        at("heapRate", "limits.max_alarm"),
    ),
    (
        "limits_are_ordered",
        attribute("heapRate", limits=Limits(min_alarm=1, max_alarm=1)),
        at("heapRate", "limits.max_alarm"),
    ),
    (
        "limits_are_ordered",
        attribute("heapRate", limits=Limits(min_alarm=1, min_warning=0)),
        at("heapRate", "limits.min_warning"),
    ),
    ("sampling_is_possible", device_class(sampling=Sampling(shortest=-1)), f"{NODE}.toml: sampling.shortest"),
    (
        "sampling_is_possible",
        device_class(sampling=Sampling(shortest=0, longest=0)),
        f"{NODE}.toml: sampling.longest",
    ),
    (
        "sampling_is_possible",
        attribute("heapRate", sampling=Sampling(shortest=-1)),
        at("heapRate", "sampling.shortest"),
    ),
    ("sampling_is_possible", attribute("heapRate", sampling=Sampling(longest=0.5)), at("heapRate", "sampling.longest")),
    (
        "sampling_is_possible",
        attribute("heapRate", sampling=Sampling(absolute=-1)),
        at("heapRate", "sampling.absolute"),
    ),
    (
        "sampling_is_possible",
        attribute("heapRate", sampling=Sampling(relative=-1)),
        at("heapRate", "sampling.relative"),
    ),
    ("staleness_outlasts_sampling", device_class(stale_after=0.5), f"{NODE}.toml: stale_after"),
    ("staleness_outlasts_sampling", attribute("heapRate", stale_after=-1.0), at("heapRate", "stale_after")),
    ("staleness_outlasts_sampling", attribute("heapRate", sampling=WIDE), at("heapRate", "stale_after")),
    ("one_source_at_most", attribute("heapRate", account=ACCOUNT), at("heapRate", "account")),
    ("only_provided_values_are_written", attribute("heapRate", access="READ_WRITE"), at("heapRate", "access")),
    ("sourced_values_are_scalars", attribute("heapRate", length=3), at("heapRate", "length")),
    ("topics_exist", attribute("heapRate", source_topic="heaps"), at("heapRate", "source.topic")),
    (
        "topics_exist",
        attribute("ingestHeapsLag", "SdpBus", account=AccountSource(stream="x", figure="lag")),
        at("ingestHeapsLag", "account.stream", "SdpBus"),
    ),
    ("windows_exist", attribute("heapRate", source_topic="state"), at("heapRate", "source.topic")),
    ("windows_exist", attribute("heapsMissing", source_topic="state"), at("heapsMissing", "source.topic")),
    ("fields_are_given_where_needed", attribute("latencyMean", source_field=None), at("latencyMean", "source.field")),
    ("fields_are_given_where_needed", attribute("heapsTotal", source_field="lost"), at("heapsTotal", "source.field")),
    ("fields_exist", attribute("latencyMean", source_field="latncy"), at("latencyMean", "source.field")),
    ("fields_exist", attribute("packetLossFraction", source_of=("lost", "x")), at("packetLossFraction", "source.of")),
    ("fields_exist", attribute("scanID", source_topic="dead-letters"), at("scanID", "source.field")),
    ("fields_are_numeric", attribute("latencyMean", source_field="schema"), at("latencyMean", "source.field")),
    (
        "fields_are_numeric",
        attribute("packetLossFraction", source_of=("lost", "schema")),
        at("packetLossFraction", "source.of"),
    ),
    ("quantiles_have_a_probability", attribute("latencyP99", source_q=None), at("latencyP99", "source.q")),
    ("quantiles_have_a_probability", attribute("latencyP99", source_q=1.0), at("latencyP99", "source.q")),
    ("quantiles_have_a_probability", attribute("latencyMean", source_q=0.5), at("latencyMean", "source.q")),
    (
        "fractions_have_a_whole",
        attribute("packetLossFraction", source_of=("received", "late")),
        at("packetLossFraction", "source.of"),
    ),
    (
        "fractions_have_a_whole",
        attribute("packetLossFraction", source_of=("lost", "latency")),
        at("packetLossFraction", "source.of"),
    ),
    ("fractions_have_a_whole", attribute("latencyMean", source_of=("latency",)), at("latencyMean", "source.of")),
    ("totals_add_up", attribute("latencyMean", source_over="total"), at("latencyMean", "source.over")),
    ("units_follow_from_fields", attribute("latencyMean", unit="s"), at("latencyMean", "unit")),
    ("types_fit", attribute("heapsTotal", type="DevLong"), at("heapsTotal", "type")),
    ("types_fit", attribute("packetsLost", type="DevDouble"), at("packetsLost", "type")),
    ("types_fit", attribute("latencyMean", type="DevLong64"), at("latencyMean", "type")),
    ("types_fit", attribute("scanID", type="DevLong"), at("scanID", "type")),
    ("types_fit", attribute("scanID", source_field="schema"), at("scanID", "type")),
    ("types_fit", attribute("ingestHeapsLag", "SdpBus", type="DevLong"), at("ingestHeapsLag", "type", "SdpBus")),
    ("topic_names_are_legal", renamed_topic, "topics.toml: topics[a b]"),
    ("topic_names_are_legal", topic("state", description="No stop"), "topics.toml: topics[state].description"),
    ("topic_messages_exist", topic("state", message="stat"), "topics.toml: topics[state].message"),
    (
        "columnar_messages_are_numbers",
        topic("ingest.heaps", encodings=("arrow",)),
        "topics.toml: topics[ingest.heaps].encodings",
    ),
    (
        "columnar_messages_are_numbers",
        topic("state", encodings=("json", "arrow")),
        "topics.toml: topics[state].encodings",
    ),
    ("retention_fits_cleanup", topic("state", retention=1.0), "topics.toml: topics[state].retention"),
    ("retention_fits_cleanup", topic("ingest.heaps", retention=None), "topics.toml: topics[ingest.heaps].retention"),
    ("dead_letters_take_anything", topic("state", max_bytes=16_777_216), "topics.toml: topics[state].max_bytes"),
    ("role_texts_are_complete", role("Worker"), "topics.toml: roles[Worker]"),
    ("role_texts_are_complete", role("worker", description="No stop"), "topics.toml: roles[worker].description"),
    ("topic_roles_exist", topic("state", writers=("nobody",)), "topics.toml: topics[state].writers"),
    ("topic_roles_exist", topic("state", readers=("control", "control")), "topics.toml: topics[state].readers"),
    ("topics_have_two_ends", topic("state", writers=()), "topics.toml: topics[state].writers"),
    ("topics_have_two_ends", topic("state", readers=()), "topics.toml: topics[state].readers"),
    ("roles_take_part", role("worker"), "topics.toml: roles[worker]"),
    ("device_servers_are_roles", device_class(instance="nodes-{rack:02d}"), f"{NODE}.toml: instance"),
    (
        "growing_topics_have_no_one_order",
        topic("alerts", partitions_may_grow=True),
        "topics.toml: topics[alerts].partitions_may_grow",
    ),
    (
        "growing_topics_have_no_one_order",
        topic("quality", partitions_may_grow=True),
        "topics.toml: topics[quality].partitions_may_grow",
    ),
    ("topic_sizes_are_positive", topic("state", partitions=0), "topics.toml: topics[state].partitions"),
    ("topic_sizes_are_positive", topic("state", max_bytes=0), "topics.toml: topics[state].max_bytes"),
    (
        "topic_config_does_not_overrule",
        topic("state", config={"retention.ms": "1"}),
        "topics.toml: topics[state].config[retention.ms]",
    ),
    (
        "window_numbers_are_possible",
        topic("ingest.heaps", window_length=0.0),
        "topics.toml: topics[ingest.heaps].window.length",
    ),
    (
        "window_numbers_are_possible",
        topic("ingest.heaps", window_length=float("inf")),
        "topics.toml: topics[ingest.heaps].window.length",
    ),
    (
        "window_numbers_are_possible",
        topic("ingest.heaps", window_disorder=-1.0),
        "topics.toml: topics[ingest.heaps].window.disorder",
    ),
    (
        "window_numbers_are_possible",
        topic("ingest.heaps", window_quantile_error=1.0),
        "topics.toml: topics[ingest.heaps].window.quantile_error",
    ),
    (
        "window_numbers_are_possible",
        topic("ingest.heaps", window_length=0.5),
        "topics.toml: topics[ingest.heaps].window.length",
    ),
    (
        "window_numbers_are_possible",
        topic("storage", window_length=86_401.0),
        "topics.toml: topics[storage].window.length",
    ),
    (
        "window_numbers_are_possible",
        topic("storage", window_lateness=1e9),
        "topics.toml: topics[storage].window.lateness",
    ),
    (
        "window_fields_have_the_right_type",
        topic("ingest.heaps", window_sequence="latency"),
        "topics.toml: topics[ingest.heaps].window.sequence",
    ),
    (
        "window_fields_have_the_right_type",
        topic("ingest.heaps", window_epoch="scan"),
        "topics.toml: topics[ingest.heaps].window.epoch",
    ),
    (
        "window_fields_have_the_right_type",
        topic("flagging", window_group="seqq"),
        "topics.toml: topics[flagging].window.group",
    ),
    ("window_messages_are_flat", topic("ingest.heaps", message=None), "topics.toml: topics[ingest.heaps].message"),
    (
        "window_messages_are_flat",
        message("properties/lost", {"type": "array", "items": {"type": "string"}, "description": "x"}),
        "heap.schema.json: properties.lost",
    ),
    ("window_messages_are_flat", message("required", ["schema"]), "heap.schema.json: properties.node"),
    (
        "window_groups_are_bounded",
        topic("ingest.heaps", window_groups=None),
        "topics.toml: topics[ingest.heaps].window.most_groups",
    ),
    (
        "window_groups_are_bounded",
        topic("ingest.heaps", window_most_groups=9),
        "topics.toml: topics[ingest.heaps].window.most_groups",
    ),
    (
        "window_groups_are_bounded",
        topic("storage", window_all_expected=True),
        "topics.toml: topics[storage].window.all_expected",
    ),
    (
        "window_groups_are_bounded",
        topic("storage", window_groups="subarray"),
        "topics.toml: topics[storage].window.groups",
    ),
    (
        "window_times_are_the_brokers",
        topic("ingest.heaps", timestamp="CreateTime"),
        "topics.toml: topics[ingest.heaps].timestamp",
    ),
    (
        "window_times_are_the_brokers",
        topic("ingest.summary", timestamp="CreateTime"),
        "topics.toml: topics[ingest.summary].timestamp",
    ),
    (
        "window_summaries_have_a_topic",
        topic("storage", window_summary="state"),
        "topics.toml: topics[storage].window.summary",
    ),
    (
        "window_summaries_have_a_topic",
        topic("ingest.buffers", window_summary="ingest.summary"),
        "topics.toml: topics[ingest.buffers].window.summary",
    ),
    (
        "window_summaries_have_a_topic",
        topic("ingest.summary", also=("rack-summary",)),
        "topics.toml: topics[ingest.summary].also",
    ),
    (
        "windows_keep_what_rules_need",
        topic("flagging", window_sequence=None),
        at("flaggingReportsMissing", "source.rule", "SdpQuality"),
    ),
    (
        "windows_keep_what_rules_need",
        topic("ingest.heaps", window_quantile_error=None),
        at("latencyP99", "source.rule"),
    ),
    (
        "windows_keep_what_rules_need",
        message("properties/latency/minimum", -1.0),
        at("latencyP99", "source.field"),
    ),
    ("sums_stay_exact", message("properties/lost/maximum", 2**53 - 1), at("packetsLost", "source.field")),
    (
        "devices_have_the_groups",
        attribute("heapRate", source_topic="storage"),
        at("heapRate", "source.topic"),
    ),
    (
        "devices_have_the_groups",
        attribute("heapRate", source_topic="flagging"),
        at("heapRate", "source.topic"),
    ),
    ("windows_close_before_they_are_stale", attribute("heapRate", stale_after=1.0), at("heapRate", "stale_after")),
    ("states_have_a_source", device_class(NODE, state_source="storage"), "SdpIngestNode.toml: state_source"),
    ("states_have_a_source", device_class(MASTER, state_source="storages"), "SdpMaster.toml: state_source"),
    (
        "window_time_is_in_microseconds",
        topic("ingest.heaps", window_time="seq"),
        "topics.toml: topics[ingest.heaps].window.time",
    ),
    ("messages_are_closed_objects", message("type", "array"), "heap.schema.json: type"),
    ("messages_are_closed_objects", message("properties", []), "heap.schema.json: properties"),
    ("messages_are_closed_objects", message("additionalProperties", None), "heap.schema.json: additionalProperties"),
    (
        "messages_name_their_version",
        message("properties/schema/const", "heap"),
        "heap.schema.json: properties.schema.const",
    ),
    ("messages_name_their_version", message("required", []), "heap.schema.json: required"),
    ("messages_name_their_version", message("$id", "x/heap/2"), "heap.schema.json: $id"),
    ("required_properties_exist", message("required", ["schema", "x"]), "heap.schema.json: required"),
    (
        "properties_are_described",
        message("properties/node/description", None),
        "heap.schema.json: properties.node.description",
    ),
    ("properties_are_described", message("description", " "), "heap.schema.json: description"),
    (
        "properties_are_described",
        message("properties/partials/items/properties/count/description", None, "ingest-summary"),
        "ingest-summary.schema.json: properties.partials.items.properties.count.description",
    ),
    ("numbers_are_bounded", message("properties/node/maximum", None), "heap.schema.json: properties.node.maximum"),
    (
        "numbers_are_bounded",
        message("properties/latency/minimum", None),
        "heap.schema.json: properties.latency.minimum",
    ),
    (
        "numbers_are_bounded",
        message("properties/reasons/additionalProperties/maximum", None, "stream-account"),
        "stream-account.schema.json: properties.reasons.additionalProperties.maximum",
    ),
    ("bounds_are_ordered", message("properties/node/maximum", -1), "heap.schema.json: properties.node.maximum"),
    (
        "field_units_are_known",
        message("properties/latency/x-unit", "ms"),
        "heap.schema.json: properties.latency.x-unit",
    ),
    ("field_units_are_known", message("properties/schema/x-unit", "s"), "heap.schema.json: properties.schema.x-unit"),
    ("numbers_are_finite", command("Scan", ceiling=float("inf")), of_command("Scan", "ceiling")),
    ("reported_values_have_no_source", attribute("heapRate", reported=True), at("heapRate", "reported")),
    (
        "reported_values_have_no_source",
        attribute("scanID", SUBARRAY, account=ACCOUNT),
        at("scanID", "reported", SUBARRAY),
    ),
    ("reported_values_have_a_topic", without("state"), "topics.toml: topics[state]"),
    ("reported_values_have_a_topic", topic("state", message="heap"), "topics.toml: topics[state]"),
    ("reported_types_are_readable", attribute("scanID", SUBARRAY, type="DevDouble"), at("scanID", "type", SUBARRAY)),
    ("reported_types_are_readable", attribute("scanID", SUBARRAY, length=3), at("scanID", "length", SUBARRAY)),
    ("initial_values_fit", attribute("versionId", SUBARRAY, initial="1"), at("versionId", "initial", SUBARRAY)),
    ("initial_values_fit", attribute("obsState", SUBARRAY, initial="RED"), at("obsState", "initial", SUBARRAY)),
    ("initial_values_fit", attribute("scanID", SUBARRAY, initial="1.0"), at("scanID", "initial", SUBARRAY)),
    ("initial_values_fit", attribute("scanID", SUBARRAY, initial="true"), at("scanID", "initial", SUBARRAY)),
    ("initial_values_fit", attribute("scanID", SUBARRAY, initial=str(2**63)), at("scanID", "initial", SUBARRAY)),
    ("initial_values_fit", attribute("scanTypes", SUBARRAY, initial="{}"), at("scanTypes", "initial", SUBARRAY)),
    ("initial_values_fit", attribute("scanTypes", SUBARRAY, initial="[1]"), at("scanTypes", "initial", SUBARRAY)),
    ("initial_values_fit", attribute("scanTypes", SUBARRAY, initial="["), at("scanTypes", "initial", SUBARRAY)),
    ("obs_states_have_a_beginning", attribute("obsState", SUBARRAY, initial=None), at("obsState", "initial", SUBARRAY)),
    ("command_names_are_camel_case", command("Scan", name="scan"), of_command("scan", "name")),
    ("command_names_are_camel_case", query("GetCommand", name="get"), of_query("get", "name")),
    ("command_names_are_free", command("Scan", name="Init"), of_command("Init", "name")),
    ("command_names_are_free", command("Scan", name="STATE"), of_command("STATE", "name")),
    ("command_names_are_free", command("Scan", name="ScanId"), of_command("ScanId", "name")),
    ("command_names_are_free", command("Scan", name="ENDSCAN"), of_command("EndScan", "name")),
    ("command_names_are_free", query("GetCommand", name="SCAN"), of_query("SCAN", "name")),
    ("command_texts_are_complete", command("Scan", description="No stop"), of_command("Scan", "description")),
    ("command_texts_are_complete", query("GetCommand", description=""), of_query("GetCommand", "description")),
    (
        "command_texts_are_complete",
        query("GetCommand", argument_description=""),
        of_query("GetCommand", "argument_description"),
    ),
    (
        "command_texts_are_complete",
        query("GetCommand", result_description=""),
        of_query("GetCommand", "result_description"),
    ),
    (
        "queries_describe_arguments",
        query("GetCommand", argument="DevVoid"),
        of_query("GetCommand", "argument_description"),
    ),
    ("encoded_results_are_bounded", query("GetCommand", max_bytes=1), of_query("GetCommand", "max_bytes")),
    ("encoded_results_are_bounded", query("GetCommand", result="DevEncoded"), of_query("GetCommand", "max_bytes")),
    (
        "encoded_results_are_bounded",
        query("GetCommand", result="DevEncoded", max_bytes=10**9),
        of_query("GetCommand", "max_bytes"),
    ),
    ("command_arguments_exist", command("Scan", argument="skan"), of_command("Scan", "argument")),
    ("command_states_exist", command("Scan", state=()), of_command("Scan", "state")),
    ("command_states_exist", command("Scan", state=("RED",)), of_command("Scan", "state")),
    ("command_states_exist", command("Scan", state=("ON", "ON")), of_command("Scan", "state")),
    ("command_states_exist", command("Scan", obs_state=("ON",)), of_command("Scan", "obs_state")),
    ("command_states_exist", command("On", MASTER, obs_state=("IDLE",)), of_command("On", "obs_state", MASTER)),
    ("command_reports_exist", command("On", MASTER, reports="obsState"), of_command("On", "reports", MASTER)),
    ("command_reports_exist", attribute("obsState", SUBARRAY, reported=False), of_command("Scan", "reports")),
    ("command_targets_exist", command("Scan", targets=()), of_command("Scan", "targets")),
    ("command_targets_exist", command("Scan", targets=("ON",)), of_command("Scan", "targets")),
    ("command_targets_exist", command("On", targets=("IDLE",)), of_command("On", "targets")),
    ("command_targets_exist", command("Scan", transitional="ON"), of_command("Scan", "transitional")),
    ("command_targets_exist", command("Scan", transitional="SCANNING"), of_command("Scan", "transitional")),
    ("commanded_states_exist", command("Scan", commanded="ON"), of_command("Scan", "commanded")),
    ("commanded_states_exist", command("On", MASTER, commanded="IDLE"), of_command("On", "commanded", MASTER)),
    ("command_times_are_ordered", command("Scan", start_within=0.0), of_command("Scan", "start_within")),
    ("command_times_are_ordered", command("Scan", start_within=11.0), of_command("Scan", "deadline")),
    ("command_times_are_ordered", command("Scan", ceiling=9.0), of_command("Scan", "ceiling")),
    ("command_times_are_ordered", command("Scan", deadline=float("nan")), of_command("Scan", "deadline")),
    (
        "transitions_can_be_left",
        lambda icd: command("Off", overtakes=False)(command("Abort", overtakes=False)(icd)),
        of_command("Configure", "transitional"),
    ),
    ("transitions_can_be_left", command("Off", state=("OFF",)), of_command("Restart", "transitional")),
    ("overtaking_commands_are_repeatable", command("Abort", repeatable=False), of_command("Abort", "repeatable")),
    ("executor_patterns_are_names", executor(device="a/b"), f"{_EXECUTOR}.device"),
    ("executors_are_complete", executor(description="No stop"), f"{_EXECUTOR}.description"),
    ("executors_are_complete", executor(device="MID-sdp/control/0"), f"{_EXECUTOR}.device"),
    ("executors_are_complete", executor(commands=()), f"{_EXECUTOR}.commands"),
    ("executors_are_complete", executor(command_description="No"), f"{_EXECUTOR}.commands[Prepare].description"),
    ("executors_are_complete", executor(command_state=("ON",)), f"{_EXECUTOR}.commands[Prepare].state"),
    ("command_arguments_exist", executor(command_argument="none"), f"{_EXECUTOR}.commands[Prepare].argument"),
    ("command_times_are_ordered", executor(command_deadline=1.0), f"{_EXECUTOR}.commands[Prepare].deadline"),
    ("numbers_are_finite", executor(command_ceiling=float("inf")), f"{_EXECUTOR}.commands[Prepare].ceiling"),
    ("command_topics_exist", without("heartbeats"), "topics.toml: topics[heartbeats]"),
    ("command_topics_exist", topic("commands", message="heap"), "topics.toml: topics[commands].message"),
    ("command_topics_exist", topic("commands", timestamp="CreateTime"), "topics.toml: topics[commands].timestamp"),
    ("acks_outlive_commands", topic("command-acks", retention=60.0), "topics.toml: topics[command-acks].retention"),
    (
        "argument_schemas_name_themselves",
        argument("$id", "https://schema.skao.int/ska-sdp-assignres/0.5"),
        "assignres-0.4.schema.json: $id",
    ),
    (
        "argument_schemas_name_themselves",
        argument("properties/interface/const", "0.4"),
        "assignres-0.4.schema.json: properties.interface.const",
    ),
    ("argument_properties_are_described", argument("title", " "), "assignres-0.4.schema.json: title"),
    (
        "argument_properties_are_described",
        argument("$defs/beam/properties/beam_id", {"type": "string"}),
        "assignres-0.4.schema.json: $defs.beam.properties.beam_id.description",
    ),
    (
        "argument_references_lead_somewhere",
        argument("$defs/beam/properties/beam_id/$ref", "#/$defs/nam"),
        "assignres-0.4.schema.json: $defs.beam.properties.beam_id.$ref",
    ),
    (
        "argument_references_lead_somewhere",
        argument("$ref", "0.3#/$defs/assignment", "assignres", "0.5"),
        "assignres-0.5.schema.json: $ref",
    ),
    (
        "argument_keywords_are_supported",
        argument("$defs/name/format", "date"),
        "assignres-0.4.schema.json: $defs.name.format",
    ),
    (
        "argument_schemas_are_legal",
        argument("$defs/name/minLength", "1"),
        "assignres-0.4.schema.json: $defs.name.minLength",
    ),
    ("schemas_are_legal", message("properties/node/minimum", "0"), "heap.schema.json: properties.node.minimum"),
    ("examples_are_legal", message("examples", [{"schema": "heap/1"}]), "heap.schema.json: examples[0]"),
]


def test_the_shipped_interface_is_clean() -> None:
    """Also by the slow checks."""
    assert inspect(thorough=True)[1] == []


def test_every_shipped_message_compiles(icd: Icd) -> None:
    """So that no service finds out at its start."""
    for name, schema in icd.messages.items():
        assert compile_message(name, schema).__struct_fields__ == tuple(schema["properties"])


def test_every_shipped_unit_is_known(icd: Icd) -> None:
    """The units that follow from field and rule are of the list, too."""
    for one in icd.classes.values():
        for attribute in one.attributes:
            assert unit_of(icd, attribute) in UNITS


@pytest.mark.parametrize(("name", "edit", "where"), FAILING)
def test_a_check_fires(icd: Icd, name: str, edit: Edit, where: str) -> None:
    """It names the file and the key, and is silent about the interface as shipped."""
    assert list(ALL[name](icd)) == []
    edited = edit(icd)
    assert where in [f"{found.file}: {found.key}" for found in ALL[name](edited)]
    assert set(ALL[name](edited)) <= set(check(edited, thorough=ALL[name] in THOROUGH_CHECKS))


def test_every_check_is_seen_to_fire() -> None:
    """A check without an example here could be one that never fires."""
    assert {name for name, *_ in FAILING} == set(ALL)


def test_the_command_reports_a_clean_interface() -> None:
    """``icd check`` counts what there is and succeeds."""
    result = CliRunner().invoke(app, ["icd", "check"])
    assert result.exit_code == 0
    assert "no findings" in result.stdout
    assert "ingest.heaps" in result.stdout


def test_the_command_reports_findings(tmp_path: Any) -> None:
    """``icd check`` prints each finding and fails."""
    result = CliRunner().invoke(app, ["icd", "check", "--folder", str(tmp_path)])
    assert result.exit_code == 1
    assert "topics.toml: expected a file" in result.output
    assert "4 finding(s)" in result.output


def test_the_command_shows_every_attribute(icd: Icd) -> None:
    """``icd show`` has a row for each, whatever the case of the name."""
    for name, one in icd.classes.items():
        result = CliRunner().invoke(app, ["icd", "show", name.lower()])
        assert result.exit_code == 0
        assert all(attribute.name in result.stdout for attribute in one.attributes)


def test_the_command_shows_every_command(icd: Icd) -> None:
    """``icd show`` has a row for each that controllers execute, and for each that the device answers."""
    for name, one in icd.classes.items():
        shown = CliRunner().invoke(app, ["icd", "show", name]).stdout
        assert all(entry.name in shown for entry in (*one.commands, *one.queries))
        assert ("executed by controllers" in shown) == bool(one.commands)


def test_the_command_names_the_classes_that_there_are() -> None:
    """``icd show`` of something else says what it knows."""
    result = CliRunner().invoke(app, ["icd", "show", "SdpNode"])
    assert result.exit_code == 2
    assert "SdpIngestNode" in result.output


def test_no_state_of_a_subarray_is_a_dead_end():
    """From everything that a failing command may leave (FAULT, in ON or OFF), some command leads on."""
    icd = load()
    commands = icd.classes["SdpSubarray"].commands
    stable = set(icd.enums["ObsState"]) - {command.transitional for command in commands}
    for state, obs_state in itertools.product(("ON", "OFF"), stable):
        allowed = [c.name for c in commands if state in c.state and (not c.obs_state or obs_state in c.obs_state)]
        reachable = state == "ON" or obs_state in ("EMPTY", "FAULT")
        assert allowed or not reachable, f"nothing is allowed in {state}, {obs_state}"


def test_what_people_see_has_times_that_people_can_read() -> None:
    for device_class in load().classes.values():
        entries = {one.name: one for one in device_class.attributes}
        for one in entries.values():
            if one.description.startswith("Unix time"):
                assert one.expert, one.name
                assert not entries[f"{one.name}Utc"].expert


def test_panels_of_operators_have_no_long_text_in_one_row_and_few_figures_of_accounts() -> None:
    """A panel of ATK is as wide as its longest value, and shows nothing of the others then."""
    seen = {
        f"{name}.{one.name}": one for name, made in load().classes.items() for one in made.attributes if not one.expert
    }
    long = {
        "SdpMaster.sdpVersion",
        "SdpSubarray.receiveAddresses",
        "SdpSubarray.resources",
        "SdpSubarray.newestFailure",
    }
    assert not long & seen.keys()
    figures = {one.account.figure for one in seen.values() if one.account}
    assert figures == {"rate", "dead_lettered", "lag_time"}


def test_labels_of_a_commanded_device_say_what_they_count() -> None:
    for name in ("SdpMaster", "SdpSubarray"):
        for one in load().classes[name].attributes:
            if one.name.startswith(("lrc", "_lrc", "longRunning")):
                assert "ommand" in one.label, one.name
    for one in load().classes["SdpAlerts"].attributes:
        if one.name.endswith("Count"):
            assert "alarms" in one.label, one.name
