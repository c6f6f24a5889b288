"""What a change of the interface breaks, and for whom: one row per kind of difference."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from facade.kernel.cli.app import app
from facade.kernel.errors import IcdError
from facade.kernel.icd.load import load, with_avro
from facade.kernel.icd.model import Attribute, CommandDefinition, Condition, DeviceClass, Executor, Icd, Query
from facade.kernel.icd.topic_model import Role, Topic, Window
from facade.kernel.resources import resource
from facade.tools.icd_diff import ENTRIES, FIELDS, Difference, VersionStep, compare, judge_version

ICD = load()
replace = msgspec.structs.replace
PATCH, MINOR, MAJOR = VersionStep.PATCH, VersionStep.MINOR, VersionStep.MAJOR
CLIENTS, CONTROLLERS = "Tango clients", "controllers"
Edit = Callable[[Icd], Icd]


def gone(kind: str, name: str) -> Edit:
    return lambda icd: replace(icd, **{kind: {key: part for key, part in getattr(icd, kind).items() if key != name}})


def copied(kind: str, name: str) -> Edit:
    return lambda icd: replace(icd, **{kind: {**getattr(icd, kind), "new": getattr(icd, kind)[name]}})


def topic(name: str, **changes: Any) -> Edit:
    return lambda icd: replace(icd, topics={**icd.topics, name: replace(icd.topics[name], **changes)})


def window(**changes: Any) -> Edit:
    return lambda icd: topic("ingest.heaps", window=replace(icd.topics["ingest.heaps"].window, **changes))(icd)


def condition(name: str, **changes: Any) -> Edit:
    return lambda icd: replace(icd, conditions={**icd.conditions, name: replace(icd.conditions[name], **changes)})


def enum(name: str, *labels: str) -> Edit:
    return lambda icd: replace(icd, enums={**icd.enums, name: labels})


def device_class(name: str, **changes: Any) -> Edit:
    return lambda icd: replace(icd, classes={**icd.classes, name: replace(icd.classes[name], **changes)})


def entry(owner: str, kind: str, name: str, **changes: Any) -> Edit:
    def edit(icd: Icd) -> Icd:
        every = getattr(icd.classes[owner], kind)
        assert any(one.name == name for one in every)
        kept = (replace(one, **changes) if one.name == name else one for one in every if changes or one.name != name)
        return device_class(owner, **{kind: tuple(kept)})(icd)

    return edit


def attribute(owner: str, name: str, **changes: Any) -> Edit:
    return entry(owner, "attributes", name, **changes)


def command(name: str, **changes: Any) -> Edit:
    return entry("SdpSubarray", "commands", name, **changes)


def more(owner: str, kind: str, one: Any) -> Edit:
    return lambda icd: device_class(owner, **{kind: (*getattr(icd.classes[owner], kind), one)})(icd)


def message(name: str, edit: Callable[[dict[str, Any]], object]) -> Edit:
    def changed(icd: Icd) -> Icd:
        schema = json.loads(json.dumps(icd.messages[name]))
        edit(schema)
        return replace(icd, messages={**icd.messages, name: schema})

    return changed


def field(name: str, key: str, **changes: Any) -> Edit:
    return message(name, lambda schema: schema["properties"][key].update(changes))


def new_field(name: str, *, required: bool) -> Edit:
    def edit(schema: dict[str, Any]) -> None:
        schema["properties"]["extra"] = {"type": "string", "description": "New."}
        schema["required"] += ["extra"] * required

    return message(name, edit)


def argument(family: str, version: str, schema: dict[str, Any] | None) -> Edit:
    def edit(icd: Icd) -> Icd:
        versions = {key: one for key, one in icd.arguments[family].items() if key != version}
        return replace(icd, arguments={**icd.arguments, family: {**versions, **({version: schema} if schema else {})}})

    return edit


def stricter_scan(icd: Icd) -> Icd:
    schema = json.loads(json.dumps(icd.arguments["scan"]["1.0"]))
    schema["$defs"]["scan"]["required"] = [*schema["$defs"]["scan"]["required"], "transaction_id"]
    return argument("scan", "1.0", schema)(icd)


NEW_ATTRIBUTE = Attribute(name="extra", type="DevLong", label="Extra", description="New.")
NEW_QUERY = Query(name="Extra", description="New.", argument="DevVoid", result="DevString", result_description="It.")
SCAN = next(one for one in ICD.classes["SdpSubarray"].commands if one.name == "Scan")
OBS = ICD.enums["ObsState"]

CASES: dict[str, tuple[Edit, VersionStep, str, str]] = {
    # what was done: how, the step, who is concerned, what is said
    "class removed": (gone("classes", "SdpBus"), MAJOR, CLIENTS, "SdpBus:"),
    "class text": (device_class("SdpBus", description="Other."), PATCH, "", "SdpBus.description: text changed"),
    "devices renamed": (device_class("SdpBus", device="a/b/c"), MAJOR, CLIENTS, "device: mid-sdp/bus/0 -> a/b/c"),
    "class elsewhere": (device_class("SdpBus", instance="bus"), MINOR, "site engineers", "SdpBus.instance"),
    "attribute removed": (attribute("SdpSubarray", "obsState"), MAJOR, CLIENTS, "SdpSubarray.obsState: removed"),
    "attribute added": (more("SdpBus", "attributes", NEW_ATTRIBUTE), MINOR, CLIENTS, "SdpBus.extra: added"),
    "attribute type": (attribute("SdpSubarray", "scanID", type="DevString"), MAJOR, CLIENTS, "-> DevString"),
    "attribute unit": (attribute("SdpQuality", "noiseAntenna", unit="%"), MAJOR, CLIENTS, "unit: Jy -> %"),
    "attribute enum": (attribute("SdpSubarray", "obsState", enum="AdminMode"), MAJOR, CLIENTS, "ObsState -> AdminMode"),
    "attribute shorter": (attribute("SdpQuality", "noiseAntenna", length=64), MAJOR, CLIENTS, "length: 197 -> 64"),
    "attribute longer": (attribute("SdpQuality", "noiseAntenna", length=512), MINOR, CLIENTS, "length: 197 -> 512"),
    "attribute label": (attribute("SdpSubarray", "obsState", label="Other"), PATCH, "", "label: text changed"),
    "attribute writable": (attribute("SdpSubarray", "scanID", access="READ_WRITE"), MINOR, CLIENTS, "scanID.access"),
    "attribute read-only": (attribute("SdpSubarray", "adminMode", access="READ"), MAJOR, CLIENTS, "adminMode.access"),
    "attribute source": (attribute("SdpIngestNode", "heapRate", source=None), MAJOR, CLIENTS, "heapRate.source"),
    "unit of its field": (field("heap", "latency", **{"x-unit": "us"}), MAJOR, CLIENTS, "unit: s -> us"),
    "enum label moved": (enum("ObsState", OBS[1], OBS[0], *OBS[2:]), MAJOR, CLIENTS, "0 EMPTY, 1 RESOURCING"),
    "enum label removed": (enum("ObsState", *OBS[:-1]), MAJOR, CLIENTS, "10 RESTARTING"),
    "enum label added": (enum("ObsState", *OBS, "NEW"), MINOR, CLIENTS, "enums.ObsState: also 11 NEW"),
    "enum removed": (gone("enums", "ObsState"), MAJOR, CLIENTS, "enums.ObsState"),
    "command removed": (command("Scan"), MAJOR, CLIENTS, "SdpSubarray.Scan: removed"),
    "command added": (more("SdpSubarray", "commands", replace(SCAN, name="Look")), MINOR, CONTROLLERS, "Look: added"),
    "command narrowed": (command("Abort", obs_state=("IDLE",)), MAJOR, CLIENTS, "Abort.obs_state: without"),
    "command widened": (command("Scan", obs_state=("READY", "IDLE")), MINOR, CONTROLLERS, "obs_state: also IDLE"),
    "command anywhere": (command("Scan", obs_state=()), MINOR, CLIENTS, "obs_state: READY -> any"),
    "command no longer anywhere": (command("Off", obs_state=("IDLE",)), MAJOR, CLIENTS, "any -> IDLE"),
    "command elsewhere": (command("Scan", state=("OFF",)), MAJOR, CLIENTS, "Scan.state: ON -> OFF"),
    "argument other": (command("Scan", argument="configure"), MAJOR, CONTROLLERS, "argument: scan -> configure"),
    "deadline shorter": (command("Scan", deadline=0.5), MAJOR, CONTROLLERS, "Scan.deadline"),
    "deadline longer": (command("Scan", deadline=999.0), MINOR, CLIENTS, "Scan.deadline"),
    "begin earlier": (command("Scan", start_within=0.5), MAJOR, CONTROLLERS, "Scan.start_within"),
    "must be repeatable": (command("Scan", repeatable=True), MAJOR, CONTROLLERS, "Scan.repeatable: False -> True"),
    "outcome other": (command("Scan", targets=("IDLE",)), MAJOR, CONTROLLERS, "Scan.targets"),
    "query removed": (entry("SdpAlerts", "queries", "GetAlarms"), MAJOR, CLIENTS, "SdpAlerts.GetAlarms: removed"),
    "query added": (more("SdpBus", "queries", NEW_QUERY), MINOR, CLIENTS, "SdpBus.Extra: added"),
    "query other": (entry("SdpAlerts", "queries", "GetAlarms", argument="DevLong64"), MAJOR, CLIENTS, "-> DevLong64"),
    "query text": (entry("SdpAlerts", "queries", "GetAlarms", result_description="It."), PATCH, "", "text changed"),
    "condition removed": (
        gone("conditions", "receiveOverrun"),
        MAJOR,
        "producers of alerts",
        "conditions.receiveOverrun: removed",
    ),
    "condition priority": (condition("receiveOverrun", priority="LOW"), MINOR, "operators", "priority: "),
    "condition text": (condition("receiveOverrun", response="Other."), PATCH, "", "response: text changed"),
    "topic removed": (gone("topics", "quality"), MAJOR, "consumers of quality", "topics.quality: removed"),
    "topic added": (copied("topics", "state"), MINOR, "producers of new", "topics.new: added"),
    "topic text": (topic("state", description="Other."), PATCH, "", "topics.state.description"),
    "partitions": (topic("commands", partitions=8), MAJOR, "producers of commands", "4 -> 8, so keys move"),
    "role added": (copied("roles", "control"), MINOR, "site engineers", "roles.new: added"),
    "role removed": (gone("roles", "control"), MAJOR, "site engineers", "roles.control: removed"),
    "writer": (topic("tables", writers=("controller",)), MAJOR, "producers of tables", "without tables-assemble"),
    "reader": (
        topic("dead-letters", readers=(*ICD.topics["dead-letters"].readers, "controller")),
        MINOR,
        "site engineers",
        "topics.dead-letters.readers: also controller",
    ),
    "partitions fixed": (
        topic("commands", partitions_may_grow=False),
        MAJOR,
        "site engineers",
        "partitions_may_grow: True -> False",
    ),
    "key": (topic("commands", key="command"), MAJOR, "consumers of commands", "key: device -> command"),
    "cleanup": (topic("tables", cleanup="delete"), MAJOR, "consumers of tables", "cleanup: compact -> delete"),
    "retention shorter": (topic("commands", retention=60.0), MAJOR, "consumers of commands", "retention: "),
    "retention longer": (topic("commands", retention=9e9), MINOR, "consumers of commands", "retention: "),
    "records smaller": (topic("alerts", max_bytes=1000), MAJOR, "producers of alerts", "max_bytes: 2097152 -> 1000"),
    "records larger": (topic("alerts", max_bytes=9_000_000), MINOR, "consumers of alerts", "max_bytes"),
    "other message": (topic("tables", message="alert"), MAJOR, "producers of tables", "message: table -> alert"),
    "encoding added": (
        topic("tables", encodings=("json", "arrow")),
        MAJOR,
        "consumers of tables",
        "encodings: also arrow",
    ),
    "message no longer there": (topic("alerts", also=()), MAJOR, "producers of alerts", "without alert-action"),
    "broker settings": (topic("state", config={"segment.ms": "1"}), MINOR, "site engineers", "topics.state.config"),
    "window longer": (window(length=2.0), MAJOR, CLIENTS, "window.length: 1.0 -> 2.0"),
    "late sooner": (window(lateness=1.0), MAJOR, "producers of ingest.heaps", "window.lateness: 10.0 -> 1.0"),
    "late later": (window(lateness=60.0), MINOR, CLIENTS, "window.lateness"),
    "no windows": (topic("ingest.heaps", window=None), MAJOR, CLIENTS, "-> none"),
    "message added": (copied("messages", "state"), MINOR, "consumers of new", "messages.new: added"),
    "field required and new": (new_field("heap", required=True), MAJOR, "producers of ingest.heaps", "added, required"),
    "field new": (new_field("heap", required=False), MINOR, "consumers of ingest.heaps", "heap.extra: added"),
    "field removed": (
        message("heap", lambda schema: schema["properties"].pop("latency")),
        MAJOR,
        "consumers of ingest.heaps",
        "messages.heap.latency: removed",
    ),
    "field no longer optional": (
        message("command-ack", lambda schema: schema["required"].append("text")),
        MAJOR,
        "producers of command-acks and commands-held",
        "text: optional -> required",
    ),
    "field no longer sure": (
        message("command-ack", lambda schema: schema["required"].remove("status")),
        MAJOR,
        "consumers of command-acks and commands-held",
        "status: required -> optional",
    ),
    "field type": (field("heap", "latency", type="string"), MAJOR, "producers of ingest.heaps", "number -> string"),
    "field type wider": (field("heap", "node", type="number"), MAJOR, "consumers of ingest.heaps", "integer -> number"),
    "field type narrower": (field("heap", "latency", type="integer"), MAJOR, "producers of ingest.heaps", "-> integer"),
    "field unit": (field("heap", "latency", **{"x-unit": "us"}), MAJOR, "consumers of ingest.heaps", "x-unit: s -> us"),
    "range narrower": (field("heap", "node", maximum=99), MAJOR, "producers of ingest.heaps", "maximum: 9999 -> 99"),
    "range wider": (field("heap", "node", maximum=99999), MINOR, "consumers of ingest.heaps", "maximum: 9999 -> 99999"),
    "range narrower below": (field("heap", "node", minimum=1), MAJOR, "producers of ingest.heaps", "minimum: 0 -> 1"),
    "range wider below": (field("heap", "node", minimum=-1), MINOR, "consumers of ingest.heaps", "minimum: 0 -> -1"),
    "value removed": (field("alert", "state", enum=["ACTIVE"]), MAJOR, "producers of alerts", "without CLEARED"),
    "value added": (
        field("alert", "state", enum=["ACTIVE", "CLEARED", "NEW"]),
        MINOR,
        "consumers of alerts",
        "also NEW",
    ),
    "message version": (field("heap", "schema", const="heap/2"), MAJOR, "consumers of ingest.heaps", "-> heap/2"),
    "pattern": (field("alert", "condition", pattern="^x"), MAJOR, "producers of alerts", "condition.pattern"),
    "field text": (field("heap", "node", description="Other."), PATCH, "", "heap.node.description: text changed"),
    "former names": (field("heap", "lost", **{"x-aliases": ["gone"]}), PATCH, "", "lost.x-aliases: text changed"),
    "keyword unknown": (field("heap", "node", oneOf=[]), MAJOR, "consumers of ingest.heaps", "cannot be judged"),
    "header of bytes": (field("metric", "time", maximum=1), MAJOR, "producers of quality", "metric.time.maximum"),
    "argument version removed": (argument("scan", "0.4", None), MAJOR, CLIENTS, "arguments.scan.0.4: removed"),
    "argument version added": (argument("scan", "9.0", {"type": "object"}), MINOR, CONTROLLERS, "scan.9.0: added"),
    "argument stricter": (stricter_scan, MAJOR, CLIENTS, "transaction_id: optional -> required"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_difference_says_what_it_breaks_and_for_whom(name: str) -> None:
    edit, step, whom, what = CASES[name]
    found = compare(ICD, edit(ICD))
    concerned = [one for one in found if (whom in one.whom if whom else not one.whom)]
    assert [one for one in concerned if one.step is step and what in f"{one.where}: {one.what}"], found
    assert max(one.step for one in found) is step


def test_the_same_interface_does_not_differ() -> None:
    assert compare(ICD, load()) == []


@pytest.mark.parametrize(
    "struct",
    [DeviceClass, Attribute, CommandDefinition, Executor, Query, Condition, Role, Topic, Window],
    ids=lambda one: one.__name__,
)
def test_every_field_of_the_interface_has_its_row(struct: type[msgspec.Struct]) -> None:
    assert {f"{struct.__name__}.{name}" for name in struct.__struct_fields__} == {
        name for name in {**FIELDS, **ENTRIES} if name.startswith(f"{struct.__name__}.")
    }


NESTED = [
    ({"items": {"type": "string"}}, {"items": {"type": "integer"}}, MAJOR, "it.items.type"),
    ({"items": {"maximum": 1}}, {"items": {"maximum": 2}}, MINOR, "it.items.maximum"),
    ({}, {"items": {"maximum": 2}}, MAJOR, "it.items"),
    ({"additionalProperties": False}, {}, MINOR, "it.additionalProperties"),
    ({}, {"additionalProperties": False}, MAJOR, "it.additionalProperties"),
    ({"enum": ["a"]}, {}, MINOR, "it"),
    ({}, {"enum": ["a"]}, MAJOR, "it"),
    ({"pattern": "a"}, {}, MINOR, "it.pattern"),
    ({"minLength": 1}, {}, MINOR, "it.minLength"),
    ({}, {"maxItems": 1}, MAJOR, "it.maxItems"),
    ({"$defs": {"a": {}}}, {}, PATCH, "it.$defs.a"),
    ({"$ref": "a"}, {"$ref": "b"}, MAJOR, "it.$ref"),
    ({"patternProperties": {"a": {}}}, {"patternProperties": {"a": {"type": "null"}}}, MAJOR, "it.patternProperties.a"),
]


@pytest.mark.parametrize(("old", "new", "step", "where"), NESTED)
def test_parts_of_schemas(old: dict[str, Any], new: dict[str, Any], step: VersionStep, where: str) -> None:
    (found,) = compare(*(replace(ICD, messages={"it": schema}) for schema in (old, new)))
    assert found.step is step
    assert found.where.startswith(f"messages.{where}")


@pytest.mark.parametrize(
    ("old", "new", "largest", "enough"),
    [
        ("1.2.3", "1.2.3", None, True),
        ("1.2.3", "1.2.3", PATCH, False),
        ("1.2.3", "1.2.4", PATCH, True),
        ("1.2.3", "1.2.4", MINOR, False),
        ("1.2.3", "1.3.0", MINOR, True),
        ("1.2.3", "1.9.0", MAJOR, False),
        ("1.2.3", "2.0.0", MAJOR, True),
        ("1.2.3", "1.1.9", PATCH, False),
        ("0.2.0", "0.2.1", MAJOR, False),
        ("0.2.0", "0.3.0", MAJOR, True),
        ("0.2.0", "0.2.1", MINOR, False),
        ("0.2.0", "0.2.1", PATCH, True),
        ("0.9.0", "1.0.0", MAJOR, True),
        ("0.9.0", "0.10.0", MAJOR, True),
    ],
)
def test_the_step_that_semantic_versioning_asks_for(
    old: str, new: str, largest: VersionStep | None, enough: bool
) -> None:
    found = [] if largest is None else [Difference("it", largest, (), "changed")]
    assert judge_version(old, new, found)[0] is enough


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(IcdError, match=r"expected MAJOR\.MINOR\.PATCH, got '1\.0'"):
        judge_version("1.0", "1.0.0", [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resource("schemas"), tmp_path / "schemas"))


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["icd", "diff", *arguments])
    return done.exit_code, done.output + str(done.exception or "")


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_the_command_fails_until_the_version_is_raised(folder: Path) -> None:
    edited(folder / "icd" / "topics.toml", "partitions = 2", "partitions = 3")
    code, said = run(str(resource("schemas")), str(folder))
    assert code == 1
    assert "producers of ingest.heaps" in said
    assert "needed: a minor step (below 1.0.0" in said
    assert "too small" in said
    major, minor, _ = ICD.version.split(".")
    edited(folder / "icd" / "icd.toml", f'"{ICD.version}"', f'"{major}.{int(minor) + 1}.0"')
    assert run(str(resource("schemas")), str(folder))[0] == 0


def test_the_command_compares_with_what_is_shipped(folder: Path) -> None:
    code, said = run(str(folder))
    assert (code, "no differences" in said) == (0, True)


def test_differences_that_only_a_number_tells_apart_are_one_line(folder: Path) -> None:
    edited(folder / "icd" / "SdpCalibration.toml", '"SKA001..SKA133"', '"SKA001..SKA003"')
    code, said = run(str(folder))
    assert code == 1
    assert "SKA004 (and 129 like it)" in said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"name": "raised_at", "type": "long"', '"name": "raised_at", "type": "double"', "fingerprint changed"),
        ("What is the matter.", "What is it?", "patch: text only"),
    ],
)
def test_avro_is_known_by_its_fingerprint(folder: Path, old: str, new: str, said: str) -> None:
    edited(folder / "messages" / "alert-packet.avsc", old, new)
    code, output = run(str(folder))
    assert (code, said in output) == (1, True), output


def test_avro_that_is_kept_beside_the_new_one_breaks_nobody(folder: Path) -> None:
    messages = folder / "messages"
    (messages / "alert-packet-1.avsc").write_bytes((messages / "alert-packet.avsc").read_bytes())
    edited(messages / "alert-packet.avsc", '"name": "traceparent"', '"name": "trace"')
    found = compare(*(with_avro(ICD, one) for one in (resource("schemas"), folder)))
    assert {one.step for one in found} == {VersionStep.MINOR}
    assert "packets by the former schema are read as well" in str(found)


def test_a_git_revision_does_for_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(("git", *who, *arguments), cwd=folder.parent, check=True, capture_output=True)

    git("init")
    git("add", "schemas")
    git("commit", "-m", "first")
    edited(folder / "icd" / "topics.toml", "partitions = 2", "partitions = 3")
    monkeypatch.chdir(folder.parent)
    code, said = run("HEAD", "schemas")
    assert code == 1
    assert "2 -> 3" in said
    assert run("HEAD", "HEAD")[0] == 0
    code, said = run("--", "-nothing")
    assert code == 1
    assert "expected a folder or a git revision with schemas/, got '-nothing'" in said


def test_what_cannot_be_read_is_said_with_its_file(folder: Path) -> None:
    (folder / "icd" / "enums.toml").unlink()
    code, said = run(str(folder))
    assert code == 1
    assert "enums.toml: expected a file" in said
