"""The shipped interface is clean, and each check can fail."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from facade.kernel.icd.load import check, inspect, load, read
from facade.kernel.icd.model import AccountSource, Icd, Sampling
from facade.kernel.icd.topic_model import Limits, Operation, Role
from facade.kernel.resources import interface

NODE, SUBARRAY, MASTER = "SdpIngestNode", "SdpSubarray", "SdpMaster"
replace = msgspec.structs.replace
ICD = load()


@dataclass(frozen=True)
class Edit:
    """A change of the interface, and its place as a finding names it."""

    place: str
    change: Callable[[Icd], Icd]


def changed(one: Any, changes: dict[str, Any]) -> Any:
    """Change keys of an entry; those of its table `source`, `window` or `commands` by the table's name and ``_``."""
    plain = {key: value for key, value in changes.items() if key in one.__struct_fields__}
    for key in changes.keys() - plain.keys():
        table, _, inner = key.partition("_")
        part = getattr(one, table)
        edited = replace(part[0] if table == "commands" else part, **{inner: changes[key]})
        plain[table] = (edited,) if table == "commands" else edited
    return replace(one, **plain)


def entry(kind: str, name: str, owner: str, changes: dict[str, Any]) -> Edit:
    def change(icd: Icd) -> Icd:
        entries = getattr(icd.classes[owner], kind)
        assert name in [one.name for one in entries]
        edited = tuple(changed(one, changes) if one.name == name else one for one in entries)
        return replace(icd, classes={**icd.classes, owner: replace(icd.classes[owner], **{kind: edited})})

    return Edit(f"{owner}.toml: {kind}[{changes.get('name', name)}].", change)


def attribute(name: str, owner: str = NODE, /, **changes: Any) -> Edit:
    return entry("attributes", name, owner, changes)


def command(name: str, owner: str = SUBARRAY, /, **changes: Any) -> Edit:
    return entry("commands", name, owner, changes)


def query(name: str, owner: str = SUBARRAY, /, **changes: Any) -> Edit:
    return entry("queries", name, owner, changes)


def table(kind: str, name: str, place: str, changes: dict[str, Any]) -> Edit:
    def change(icd: Icd) -> Icd:
        entries = getattr(icd, kind)
        return replace(icd, **{kind: {**entries, name: changed(entries[name], changes)}})

    return Edit(place, change)


def device_class(name: str = NODE, /, **changes: Any) -> Edit:
    return table("classes", name, f"{changes.get('name', name)}.toml: ", changes)


def executor(**changes: Any) -> Edit:
    name = "ProcessingController"
    return table("executors", name, f"executors.toml: executors[{name}].", changes)


def topic(name: str, /, **changes: Any) -> Edit:
    return table("topics", name, f"topics.toml: topics[{name}].", changes)


def condition(key: str, value: Any, name: str = "streamSilent") -> Edit:
    return table("conditions", name, f"conditions.toml: conditions[{name}].", {key: value})


def location(**changes: Any) -> Edit:
    return table("locations", "rack", "conditions.toml: locations[rack].", changes)


def role(name: str, /, **changes: Any) -> Edit:
    one = Role(**{"description": "It works.", "side": "facade", **changes})
    return Edit(f"topics.toml: roles[{name}].", lambda icd: replace(icd, roles={**icd.roles, name: one}))


def schema(file: str, path: str, value: Any, find: Callable[[Icd], tuple[str, Any, Any]]) -> Edit:
    """Set a value deep in a schema; None removes the key."""

    def change(icd: Icd) -> Icd:
        table, whole, part = find(icd)
        *parents, last = path.split("/")
        for step in parents:
            part = part[step]
        part.update({last: value})
        if value is None:
            del part[last]
        return replace(icd, **{table: whole})

    return Edit(f"{file}.schema.json: ", change)


def message(path: str, value: Any, name: str = "heap") -> Edit:
    def find(icd: Icd) -> tuple[str, Any, Any]:
        whole = copy.deepcopy(icd.messages)
        return "messages", whole, whole[name]

    return schema(name, path, value, find)


def argument(path: str, value: Any, family: str = "assignres", version: str = "0.4") -> Edit:
    def find(icd: Icd) -> tuple[str, Any, Any]:
        whole = copy.deepcopy(icd.arguments)
        return "arguments", whole, whole[family][version]

    return schema(f"{family}-{version}", path, value, find)


def without(name: str) -> Edit:
    return Edit("", lambda icd: replace(icd, topics={key: one for key, one in icd.topics.items() if key != name}))


def whole(**changes: Any) -> Edit:
    return Edit("", lambda icd: replace(icd, **changes))


RENAMED = Edit("", lambda icd: replace(icd, topics={**icd.topics, "a b": icd.topics["state"]}))
NO_WAY_OUT = Edit("", lambda icd: command("Off", overtakes=False).change(command("Abort", overtakes=False).change(icd)))
WIDE = Sampling(shortest=5.0, longest=10.0)
ACCOUNT = AccountSource(stream="state", figure="lag")

# check, edit, where it must point: a key, or file and key
_OF_HEAPS = "topics.toml: topics[ingest.heaps].window.quantile_error"
FAILING: list[tuple[str, Edit, str]] = [
    ("version_is_semantic", whole(version="one"), "icd.toml: version"),
    ("enums_have_labels", whole(enums={"A": ("X", "X")}), "enums.toml: enums[A]"),
    ("enums_have_labels", whole(enums={"A": ()}), "enums.toml: enums[A]"),
    ("condition_texts_are_complete", condition("check", ""), "check"),
    ("condition_growths_are_more_than_once", condition("re_alarm_growth", 1.0), "re_alarm_growth"),
    ("condition_growths_are_more_than_once", condition("re_alarm_growth", 0.0, "rackSilent"), "re_alarm_growth"),
    ("suppressors_exist", condition("suppressed_by", ("nobody",)), "suppressed_by"),
    ("suppressors_exist", condition("suppressed_by", ("streamSilent",)), "suppressed_by"),
    ("suppressors_exist", condition("suppressed_by", ("rackSilent",), "ingestSilent"), "suppressed_by"),
    ("suppressor_locations_exist", condition("suppressed_by", ("rackSilent@room",)), "suppressed_by"),
    ("causes_are_told_first", condition("on_delay", 2.0), "on_delay"),
    ("causes_are_told_first", condition("off_delay", 5.0), "off_delay"),
    ("gathering_is_possible", condition("gathers", 4), "gathers"),
    ("locations_are_complete", location(sources=("rack/{room}",)), "sources"),
    ("writers_share_for_a_reason", topic("alerts", shared=""), "shared"),
    ("writers_share_for_a_reason", topic("state", shared="It has one writer."), "shared"),
    ("topic_messages_exist", topic("alerts", also=("nothing",)), "also"),
    ("topic_messages_exist", topic("alerts", also=("alert",)), "also"),
    ("records_are_described", topic("state", message=None), ""),
    ("records_are_described", topic("logs", bytes={}), ""),
    ("records_are_described", topic("quality", bytes={"name": "Metric"}), ""),
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
    ("device_patterns_are_names", device_class(device="a/b"), "device"),
    ("device_patterns_are_names", device_class(device="a/b/{rack}"), "device"),
    ("device_patterns_are_names", device_class(device="a/b/{node.real}"), "device"),
    ("instance_patterns_are_names", device_class(instance="x/{rack}"), "instance"),
    ("instance_patterns_are_names", device_class(instance="x-{node}"), "instance"),
    ("device_patterns_are_unique", device_class(device="MID-sdp/bus/0"), "device"),
    ("names_are_lower_camel_case", attribute("heapRate", name="heap_rate"), "name"),
    ("names_are_lower_camel_case", attribute("heapRate", name="HeapRate"), "name"),
    ("names_are_not_tangos", attribute("heapRate", name="state"), "name"),
    ("names_are_not_tangos", attribute("heapRate", name="status"), "name"),
    ("names_are_unique", attribute("heapRate", name="latencymean"), "SdpIngestNode.toml: attributes[latencyMean].name"),
    (
        "labels_are_unique",
        attribute("heapRate", label="latency, MEAN"),
        "SdpIngestNode.toml: attributes[latencyMean].label",
    ),
    ("enums_exist", attribute("adminMode", "SdpMaster", enum="Adm"), "enum"),
    ("enums_exist", attribute("adminMode", "SdpMaster", enum=None), "enum"),
    ("enums_exist", attribute("heapRate", enum="AdminMode"), "enum"),
    ("spectra_can_be_pushed", attribute("nodesSilent", "SdpMaster", length=2048), "length"),
    ("images_have_rows", attribute("heapRate", height=2), "height"),
    ("units_are_known", attribute("heapRate", unit="furlong"), "unit"),
    ("limits_are_for_numbers", attribute("connected", "SdpBus", limits=Limits(max_alarm=1)), "limits"),
    ("limits_are_for_numbers", attribute("nodesSilent", "SdpMaster", limits=Limits(max_alarm=1)), "limits"),
    ("limits_are_for_numbers", attribute("heapsTotal", limits=Limits(max_alarm=1.5)), "limits.max_alarm"),
    ("limits_are_ordered", attribute("heapRate", limits=Limits(max_warning=2, max_alarm=1)), "limits.max_alarm"),
    ("limits_are_ordered", attribute("heapRate", limits=Limits(min_alarm=1, max_alarm=1)), "limits.max_alarm"),
    ("limits_are_ordered", attribute("heapRate", limits=Limits(min_alarm=1, min_warning=0)), "limits.min_warning"),
    ("sampling_is_possible", device_class(sampling=Sampling(shortest=0, longest=0)), "sampling.longest"),
    ("staleness_outlasts_sampling", device_class(stale_after=0.5), "stale_after"),
    ("staleness_outlasts_sampling", attribute("heapRate", stale_after=-1.0), "stale_after"),
    ("staleness_outlasts_sampling", attribute("heapRate", sampling=WIDE), "stale_after"),
    ("one_source_at_most", attribute("heapRate", account=ACCOUNT), "account"),
    ("totals_are_counts", attribute("heapRate", total=True), "total"),
    ("totals_are_counts", attribute("flood", "SdpAlerts", total=True), "total"),
    ("only_provided_values_are_written", attribute("heapRate", access="READ_WRITE"), "access"),
    ("sourced_values_are_scalars", attribute("heapRate", length=3), "length"),
    ("topics_exist", attribute("heapRate", source_topic="heaps"), "source.topic"),
    (
        "topics_exist",
        attribute("ingestHeapsLag", "SdpBus", account=AccountSource(stream="x", figure="lag")),
        "account.stream",
    ),
    ("windows_exist", attribute("heapRate", source_topic="state"), "source.topic"),
    ("windows_exist", attribute("heapsMissing", source_topic="state"), "source.topic"),
    ("fields_are_given_where_needed", attribute("latencyMean", source_field=None), "source.field"),
    ("fields_are_given_where_needed", attribute("heapsTotal", source_field="lost"), "source.field"),
    ("fields_exist", attribute("latencyMean", source_field="latncy"), "source.field"),
    ("fields_exist", attribute("packetLossFraction", source_of=("lost", "x")), "source.of"),
    ("fields_exist", attribute("scanID", source_topic="dead-letters"), "source.field"),
    ("fields_are_numeric", attribute("latencyMean", source_field="schema"), "source.field"),
    ("fields_are_numeric", attribute("packetLossFraction", source_of=("lost", "schema")), "source.of"),
    ("quantiles_have_a_probability", attribute("latencyP99", source_q=None), "source.q"),
    ("quantiles_have_a_probability", attribute("latencyMean", source_q=0.5), "source.q"),
    ("fractions_have_a_whole", attribute("packetLossFraction", source_of=("received", "late")), "source.of"),
    ("fractions_have_a_whole", attribute("packetLossFraction", source_of=("lost", "latency")), "source.of"),
    ("fractions_have_a_whole", attribute("latencyMean", source_of=("latency",)), "source.of"),
    ("totals_add_up", attribute("latencyMean", source_over="total"), "source.over"),
    ("units_follow_from_fields", attribute("latencyMean", unit="s"), "unit"),
    ("types_fit", attribute("heapsTotal", type="DevLong"), "type"),
    ("types_fit", attribute("packetsLost", type="DevDouble"), "type"),
    ("types_fit", attribute("latencyMean", type="DevLong64"), "type"),
    ("topic_names_are_legal", RENAMED, "topics.toml: topics[a b]"),
    ("topic_messages_exist", topic("state", message="stat"), "message"),
    ("columnar_messages_are_numbers", topic("ingest.heaps", encodings=("arrow",)), "encodings"),
    ("window_snapshots_have_room", topic("ingest.heaps", window_length=60.0), "window.quantile_error"),
    ("window_snapshots_have_room", topic("snapshots", max_bytes=100_000), _OF_HEAPS),
    ("window_snapshots_have_room", topic("ingest.buffers", window_quantile_error=1e-5), "window.quantile_error"),
    ("columnar_messages_are_numbers", topic("state", encodings=("json", "arrow")), "encodings"),
    ("retention_fits_cleanup", topic("state", retention=1.0), "retention"),
    ("retention_fits_cleanup", topic("ingest.heaps", retention=None), "retention"),
    ("dead_letters_take_anything", topic("state", max_bytes=16777216), "max_bytes"),
    ("role_texts_are_complete", role("Worker"), ""),
    ("topic_roles_exist", topic("state", writers=("nobody",)), "writers"),
    ("topic_roles_exist", topic("state", readers=("control", "control")), "readers"),
    ("topics_have_two_ends", topic("state", writers=()), "writers"),
    ("topics_have_two_ends", topic("state", readers=()), "readers"),
    ("roles_take_part", role("worker"), ""),
    ("device_servers_are_roles", device_class(instance="nodes-{rack:02d}"), "instance"),
    ("growing_topics_have_no_one_order", topic("alerts", partitions_may_grow=True), "partitions_may_grow"),
    ("growing_topics_have_no_one_order", topic("quality", partitions_may_grow=True), "partitions_may_grow"),
    ("topic_config_does_not_overrule", topic("state", config={"retention.ms": "1"}), "config[retention.ms]"),
    ("window_lengths_are_exact", topic("ingest.heaps", window_length=1.00000001), "window.length"),
    ("window_fields_have_the_right_type", topic("ingest.heaps", window_sequence="latency"), "window.sequence"),
    ("window_fields_have_the_right_type", topic("ingest.heaps", window_epoch="scan"), "window.epoch"),
    ("window_fields_have_the_right_type", topic("flagging", window_group="seqq"), "window.group"),
    ("window_messages_are_flat", topic("ingest.heaps", message=None), "message"),
    (
        "window_messages_are_flat",
        message("properties/lost", {"type": "array", "items": {"type": "string"}, "description": "x"}),
        "properties.lost",
    ),
    ("window_messages_are_flat", message("required", ["schema"]), "properties.node"),
    ("window_groups_are_bounded", topic("ingest.heaps", window_groups=None), "window.most_groups"),
    ("window_groups_are_bounded", topic("ingest.heaps", window_most_groups=9), "window.most_groups"),
    ("window_groups_are_bounded", topic("storage", window_all_expected=True), "window.all_expected"),
    ("window_times_are_the_brokers", topic("ingest.heaps", timestamp="CreateTime"), "timestamp"),
    ("window_times_are_the_brokers", topic("ingest.summary", timestamp="CreateTime"), "timestamp"),
    ("window_summaries_have_a_topic", topic("storage", window_summary="state"), "window.summary"),
    ("window_summaries_have_a_topic", topic("ingest.buffers", window_summary="ingest.summary"), "window.summary"),
    ("window_summaries_have_a_topic", topic("ingest.summary", also=("rack-summary",)), "also"),
    (
        "windows_keep_what_rules_need",
        topic("flagging", window_sequence=None),
        "SdpQuality.toml: attributes[flaggingReportsMissing].source.rule",
    ),
    (
        "windows_keep_what_rules_need",
        topic("ingest.heaps", window_quantile_error=None),
        "SdpIngestNode.toml: attributes[latencyP99].source.rule",
    ),
    (
        "windows_keep_what_rules_need",
        message("properties/latency/minimum", -1.0),
        "SdpIngestNode.toml: attributes[latencyP99].source.field",
    ),
    (
        "sums_stay_exact",
        message("properties/lost/maximum", 2**53 - 1),
        "SdpIngestNode.toml: attributes[packetsLost].source.field",
    ),
    ("devices_have_the_groups", attribute("heapRate", source_topic="storage"), "source.topic"),
    ("devices_have_the_groups", attribute("heapRate", source_topic="flagging"), "source.topic"),
    ("windows_close_before_they_are_stale", attribute("heapRate", stale_after=1.0), "stale_after"),
    ("states_have_a_source", device_class(NODE, state_source="storage"), "state_source"),
    ("states_have_a_source", device_class(MASTER, state_source="storages"), "state_source"),
    ("window_time_is_in_microseconds", topic("ingest.heaps", window_time="seq"), "window.time"),
    ("messages_are_closed_objects", message("type", "array"), "type"),
    ("messages_are_closed_objects", message("properties", []), "properties"),
    ("messages_are_closed_objects", message("additionalProperties", None), "additionalProperties"),
    ("messages_name_their_version", message("properties/schema/const", "heap"), "properties.schema.const"),
    ("messages_name_their_version", message("required", []), "required"),
    ("messages_name_their_version", message("$id", "x/heap/2"), "$id"),
    ("required_properties_exist", message("required", ["schema", "x"]), "required"),
    *(
        ("former_names_are_distinct", message("properties/lost/x-aliases", names), "properties.lost.x-aliases")
        for names in ("former", ["former", 3], 3, ["former", "former"], ["received"])
    ),
    ("properties_are_described", message("properties/node/description", None), "properties.node.description"),
    ("properties_are_described", message("description", " "), "description"),
    (
        "properties_are_described",
        message("properties/partials/items/properties/count/description", None, "ingest-summary"),
        "properties.partials.items.properties.count.description",
    ),
    ("numbers_are_bounded", message("properties/node/maximum", None), "properties.node.maximum"),
    ("numbers_are_bounded", message("properties/latency/minimum", None), "properties.latency.minimum"),
    (
        "numbers_are_bounded",
        message("properties/reasons/additionalProperties/maximum", None, "stream-account"),
        "properties.reasons.additionalProperties.maximum",
    ),
    ("bounds_are_ordered", message("properties/node/maximum", -1), "properties.node.maximum"),
    ("field_units_are_known", message("properties/latency/x-unit", "ms"), "properties.latency.x-unit"),
    ("field_units_are_known", message("properties/schema/x-unit", "s"), "properties.schema.x-unit"),
    ("reported_values_have_no_source", attribute("heapRate", reported=True), "reported"),
    ("reported_values_have_no_source", attribute("scanID", SUBARRAY, account=ACCOUNT), "reported"),
    ("reported_values_have_a_topic", without("state"), "topics.toml: topics[state]"),
    ("reported_values_have_a_topic", topic("state", message="heap"), ""),
    ("reported_types_are_readable", attribute("scanID", SUBARRAY, type="DevDouble"), "type"),
    ("reported_types_are_readable", attribute("scanID", SUBARRAY, length=3), "length"),
    ("initial_values_fit", attribute("versionId", SUBARRAY, initial="1"), "initial"),
    ("initial_values_fit", attribute("obsState", SUBARRAY, initial="RED"), "initial"),
    ("initial_values_fit", attribute("scanID", SUBARRAY, initial="1.0"), "initial"),
    ("obs_states_have_a_beginning", attribute("obsState", SUBARRAY, initial=None), "initial"),
    ("command_names_are_free", command("Scan", name="Init"), "name"),
    ("command_names_are_free", command("Scan", name="STATE"), "name"),
    ("command_names_are_free", command("Scan", name="ScanId"), "name"),
    ("queries_describe_arguments", query("GetCommand", argument_description=""), "argument_description"),
    ("queries_describe_arguments", query("GetCommand", argument="DevVoid"), "argument_description"),
    ("encoded_results_are_bounded", query("GetCommand", max_bytes=1), "max_bytes"),
    ("encoded_results_are_bounded", query("GetCommand", result="DevEncoded"), "max_bytes"),
    ("encoded_results_are_bounded", query("GetCommand", result="DevEncoded", max_bytes=10**9), "max_bytes"),
    ("command_arguments_exist", command("Scan", argument="skan"), "argument"),
    ("command_states_exist", command("Scan", state=()), "state"),
    ("command_states_exist", command("Scan", state=("RED",)), "state"),
    ("command_states_exist", command("Scan", state=("ON", "ON")), "state"),
    ("command_reports_exist", command("On", MASTER, reports="obsState"), "reports"),
    (
        "command_reports_exist",
        attribute("obsState", SUBARRAY, reported=False),
        "SdpSubarray.toml: commands[Scan].reports",
    ),
    ("command_targets_exist", command("Scan", targets=()), "targets"),
    ("command_targets_exist", command("Scan", targets=("ON",)), "targets"),
    ("command_targets_exist", command("On", targets=("IDLE",)), "targets"),
    ("commanded_states_exist", command("Scan", commanded="ON"), "commanded"),
    ("commanded_states_exist", command("On", MASTER, commanded="IDLE"), "commanded"),
    ("command_times_are_ordered", command("Scan", start_within=11.0), "deadline"),
    ("overtaking_commands_never_wait", command("Abort", approval_within=60.0), "approval_within"),
    ("command_times_are_ordered", command("Scan", ceiling=9.0), "ceiling"),
    (
        "transitions_can_be_left",
        NO_WAY_OUT,
        "SdpSubarray.toml: commands[Configure].transitional",
    ),
    ("transitions_can_be_left", command("Off", state=("OFF",)), "SdpSubarray.toml: commands[Restart].transitional"),
    ("overtaking_commands_are_repeatable", command("Abort", repeatable=False), "repeatable"),
    ("executor_patterns_are_names", executor(device="a/b"), "device"),
    ("executors_are_complete", executor(device="MID-sdp/control/0"), "device"),
    ("command_arguments_exist", executor(commands_argument="none"), "commands[Prepare].argument"),
    ("command_topics_exist", without("heartbeats"), "topics.toml: topics[heartbeats]"),
    ("command_topics_exist", topic("commands", message="heap"), "message"),
    ("command_topics_exist", topic("commands", timestamp="CreateTime"), "timestamp"),
    ("acks_outlive_commands", topic("command-acks", retention=60.0), "retention"),
    ("argument_schemas_name_themselves", argument("$id", "https://schema.skao.int/ska-sdp-assignres/0.5"), "$id"),
    ("argument_schemas_name_themselves", argument("properties/interface/const", "0.4"), "properties.interface.const"),
    ("argument_properties_are_described", argument("title", " "), "title"),
    (
        "argument_properties_are_described",
        argument("$defs/beam/properties/beam_id", {"type": "string"}),
        "$defs.beam.properties.beam_id.description",
    ),
    (
        "argument_references_lead_somewhere",
        argument("$defs/beam/properties/beam_id/$ref", "#/$defs/nam"),
        "$defs.beam.properties.beam_id.$ref",
    ),
    ("argument_references_lead_somewhere", argument("$ref", "0.3#/$defs/assignment", "assignres", "0.5"), "$ref"),
    ("argument_keywords_are_supported", argument("$defs/name/format", "date"), "$defs.name.format"),
    ("argument_schemas_are_legal", argument("$defs/name/minLength", "1"), "$defs.name.minLength"),
    ("schemas_are_legal", message("properties/node/minimum", "0"), "properties.node.minimum"),
    ("examples_are_legal", message("examples", [{"schema": "heap/1"}]), "examples[0]"),
]


def test_the_shipped_interface_is_clean() -> None:
    assert inspect(thorough=True)[1] == []


@pytest.mark.parametrize(("name", "edit", "where"), FAILING)
def test_a_rule_fires(name: str, edit: Edit, where: str) -> None:
    where = where if ": " in where else f"{edit.place}{where}".rstrip(".")
    found = check(edit.change(ICD), thorough=name.endswith(("_are_legal", "_have_room")))
    assert where in [f"{one.file}: {one.key}" for one in found if one.rule == name]


def test_a_site_without_the_archive_has_an_interface_without_it() -> None:
    icd, findings = read(interface(), {})
    assert (findings, icd is not None and check(icd)) == ([], [])
    assert icd is not None
    assert icd.classes.keys() == ICD.classes.keys() - {"SdpArchive"}
    assert icd.topics.keys() == ICD.topics.keys() - {"archive-reports", "history"}
    roles = {"archive", "archive-run", "replay"}
    assert icd.roles.keys() == ICD.roles.keys() - roles
    assert not roles & {role for topic in icd.topics.values() for role in (*topic.writers, *topic.readers)}
    conditions = {"archiveBehind", "archiveDiskLow", "archiveFailing", "topicsRestored"}
    assert icd.conditions.keys() == ICD.conditions.keys() - conditions


@pytest.mark.needs("facade.archive")
def test_a_folder_as_a_whole_has_all_parts_in_the_order_of_the_installed_interface() -> None:
    icd, _ = read(interface())
    assert icd is not None
    for kind in ("classes", "topics", "roles", "conditions"):
        assert [*getattr(icd, kind)] == [*getattr(ICD, kind)]


def test_each_condition_that_the_facade_finds_has_a_severity() -> None:
    """A gathering condition has the worst of what it gathers; other programs, limits and a restore give their own."""
    others = {"calibrationFailed", "pipelineFailed", "receiveOverrun", "storageLow", "transientDetected"}
    others |= {"qualityLow", "topicsRestored"}
    without = {name for name, one in ICD.conditions.items() if one.severity is None and not one.gathers}
    assert without == others & ICD.conditions.keys()


def test_no_state_of_a_subarray_is_a_dead_end():
    commands = ICD.classes["SdpSubarray"].commands
    stable = set(ICD.enums["ObsState"]) - {command.transitional for command in commands}
    for state, obs_state in itertools.product(("ON", "OFF"), stable):
        allowed = [c.name for c in commands if state in c.state and (not c.obs_state or obs_state in c.obs_state)]
        reachable = state == "ON" or obs_state in ("EMPTY", "FAULT")
        assert allowed or not reachable, f"nothing is allowed in {state}, {obs_state}"


def test_what_people_see_has_times_that_people_can_read() -> None:
    for device_class in ICD.classes.values():
        entries = {one.name: one for one in device_class.attributes}
        for one in entries.values():
            if one.description.startswith("Unix time"):
                assert one.expert, one.name
                assert not entries[f"{one.name}Utc"].expert


def test_panels_of_operators_have_no_long_text_in_one_row_and_few_figures_of_accounts() -> None:
    seen = {
        f"{name}.{one.name}": one for name, made in ICD.classes.items() for one in made.attributes if not one.expert
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
        for one in ICD.classes[name].attributes:
            if one.name.startswith(("lrc", "_lrc", "longRunning")):
                assert "ommand" in one.label, one.name
    for one in ICD.classes["SdpAlerts"].attributes:
        if one.name.endswith("Count"):
            assert "alarms" in one.label, one.name
