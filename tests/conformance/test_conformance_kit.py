"""The kit itself: every field of the ICD has a check or a reason, and every entry has its checks."""

import json
import re
from fnmatch import fnmatchcase
from types import SimpleNamespace

import msgspec
import pytest

from clients.conformance import live_system
from clients.conformance.alarm_checks import condition_of_test
from clients.conformance.checks import CheckOptions, CheckResult, decide, flow_checks
from clients.conformance.command_checks import is_given, require_outcome
from clients.conformance.devices import find_invalid, headers_of
from clients.conformance.live_system import LiveSystem, in_order
from clients.conformance.runner import catalogue, is_wanted, write_html
from clients.conformance.subarray_run import STEPS
from clients.sample_arguments import FAMILIES, bad_arguments, good_argument
from facade.bus.dead_letters import dead_letter
from facade.bus.port import Record
from facade.clock import ManualClock
from facade.errors import ArgumentError, ConfigError
from facade.flows.commands.arguments import Arguments
from facade.icd import model, topic_model
from facade.icd.load import load
from facade.instances import number_of
from facade.outcome import RecordRejected

ICD = load()
NOW = 1_800_000_000.0
COMMANDS = {command.name: command for command in ICD.classes["SdpSubarray"].commands}


def fields() -> set[str]:
    both = {**vars(topic_model), **vars(model)}.values()
    tables = [one for one in both if isinstance(one, type) and issubclass(one, topic_model.IcdTable)]
    return {f"{one.__name__}.{name}" for one in tables for name in one.__struct_fields__}


CHECKED = {
    "icd/version": "Icd.version",
    "SdpBus/devices": "Icd.classes DeviceClass.name DeviceClass.device",
    "SdpBus/instance": "DeviceClass.instance",
    "SdpBus/streams/exists": "Attribute.name Attribute.each DeviceClass.attributes",
    "SdpBus/streams/type": "Attribute.type",
    "SdpBus/streams/dimensions": "Attribute.length Attribute.height",
    "SdpBus/streams/access": "Attribute.access",
    "SdpBus/streams/unit": "Attribute.unit",
    "SdpBus/streams/label": "Attribute.label",
    "SdpBus/streams/description": "Attribute.description",
    "SdpMaster/heapsTotal/format": "Attribute.format",
    "SdpBus/streams/level": "Attribute.expert",
    "SdpMaster/heapsTotal/limits": """Attribute.limits Limits.min_alarm Limits.min_warning Limits.max_warning
        Limits.max_alarm""",
    "SdpMaster/healthState/enum": "Attribute.enum Icd.enums",
    "SdpMaster/latencyP99/value": "Window.ahead",
    "SdpMaster/latencyP99/pace": "Attribute.sampling DeviceClass.sampling Sampling.shortest",
    "SdpMaster/latencyP99/fresh": "Attribute.stale_after DeviceClass.stale_after Window.lateness",
    "SdpMaster/adminMode/on-bus": "Attribute.reported",
    "SdpSubarray/Scan/exists": "CommandDefinition.name DeviceClass.commands",
    "SdpSubarray/Scan/types": "CommandDefinition.argument",
    "SdpSubarray/Scan/refuses-state": "CommandDefinition.state CommandDefinition.obs_state",
    "SdpSubarray/Scan/knows-version-0.4": "Icd.arguments",
    "SdpSubarray/Scan/durable": """CommandDefinition.repeatable CommandDefinition.start_within
        CommandDefinition.deadline CommandDefinition.ceiling""",
    "SdpSubarray/Scan/effect": """CommandDefinition.reports CommandDefinition.transitional CommandDefinition.targets
        CommandDefinition.commanded""",
    "SdpSubarray/Abort/overtakes": "CommandDefinition.overtakes",
    "SdpAlerts/GetAlarms/exists": "Query.name DeviceClass.queries",
    "SdpAlerts/GetAlarms/types": "Query.argument Query.result",
    "SdpAlerts/GetAlarms/description": "Query.argument_description Query.result_description",
    "SdpCalibration/GetTableContent/content": "Query.max_bytes",
    "SdpAlerts/storageLow/exists": "Icd.conditions DeviceClass.conditions",
    "SdpAlerts/storageLow/label": "Condition.label",
    "SdpAlerts/storageLow/description": "Condition.description",
    "SdpAlerts/mid-sdp/alerts/0/test-alert-cleared": "Condition.latching",
    "topics/commands/exists": "Icd.topics",
    "topics/commands/partitions": "Topic.partitions Topic.partitions_may_grow",
    "topics/commands/retention.ms": "Topic.retention",
    "topics/commands/max.message.bytes": "Topic.max_bytes",
    "topics/commands/message.timestamp.type": "Topic.timestamp",
    "topics/state/cleanup.policy": "Topic.cleanup",
    "topics/alert-state/segment.ms": "Topic.config",
    "topics/commands/records": "Topic.message Topic.also Topic.encodings Icd.messages",
    "topics/quality/records": "Topic.header RecordHeader.name RecordHeader.message",
    "topics/commands/keys": "Topic.key",
}
"""Fields of the ICD, by a check that looks at them."""
UNCHECKED = {
    "how a value is made of records; whether it is right only the account of the demo shows, record by record": """
        Attribute.source Attribute.account Source.topic Source.rule Source.field Source.over Source.q Source.of
        AccountSource.stream AccountSource.figure DeviceClass.state_source""",
    "for people; neither Tango nor Kafka has a place for it": """
        CommandDefinition.description Query.description DeviceClass.description Topic.description
        Role.description Role.side Role.group Role.own_groups Role.transactional_id Role.every_topic Role.every_group
        Topic.operations Topic.bytes Topic.traits Operation.action Operation.summary Operation.roles Operation.messages
        Operation.reply Icd.participants Icd.qos
        Condition.causes Condition.check Condition.response Condition.ends Condition.priority""",
    "rights are for the broker's access rules; a record does not name its writer": """
        Topic.writers Topic.readers Icd.roles Icd.quotas""",
    "a rule of the aggregate workers; the demo's account shows it": """
        Window.length Window.disorder Window.time Window.group Window.sequence Window.epoch Window.quantile_error
        Window.summary Window.groups Window.most_groups Window.all_expected""",
    "no Tango device: only its own controller executes its orders": """
        Icd.executors Executor.description Executor.device Executor.commands""",
    "has become attributes when the interface was read, which are compared one by one": """
        Topic.account Account.about Account.figures Account.suppressed Account.lag DeviceClass.accounts
        AccountFigure.label AccountFigure.description AccountFigure.format AccountFigure.stale_after
        AccountFigure.limits AccountFigure.expert""",
    "shown by the tests of the alarms only: the test alert takes a condition without": """
        Condition.on_delay Condition.off_delay Condition.re_alarm Condition.re_alarm_growth Condition.suppressed_by
        Condition.gathers Icd.locations Location.description Location.sources Location.within""",
    "what a deadband holds back cannot be seen from outside": "Sampling.absolute Sampling.relative",
    "an event is due by then only if a value was held back, which cannot be seen from outside": "Sampling.longest",
    "shown only by a system on which nothing was ever reported": "Attribute.initial",
    "shown only by a system on which the device has a fault": "DeviceClass.complains",
    "how flows are kept apart inside the facade; a topic does not show it": "Topic.qos",
    "a setting of the deployment, which neither Tango nor Kafka shows": """
        Topic.setting CommandDefinition.approval_within""",
    "see its fields": "Topic.window",
    "which there may be; each attribute's own is compared": "Icd.units",
}
"""Fields that no check looks at, by the reason."""


def test_every_field_of_the_icd_is_checked_or_it_is_said_why_not():
    checked, unchecked = (
        {field for fields in table.values() for field in fields.split()} for table in (CHECKED, UNCHECKED)
    )
    assert checked | unchecked == fields()
    assert not checked & unchecked
    found = ids(active=True, subarray="mid-sdp/subarray/01")
    assert [pattern for pattern in CHECKED if not any(fnmatchcase(id, pattern) for id in found)] == []


def test_every_query_is_asked_in_some_way():
    found = set(ids(active=True, subarray="mid-sdp/subarray/01"))
    for device_class in ICD.classes.values():
        for query in device_class.queries:
            id = f"{device_class.name}/{query.name}"
            assert found & {f"{id}/{aspect}" for aspect in ("answer", "content", "effect")}, id


def test_every_command_of_a_subarray_is_given():
    assert {name for name, command in COMMANDS.items() if is_given(command)} == set(COMMANDS)


def test_every_topic_has_a_schema_or_a_reason():
    own = {name for flow in flow_checks() for name in flow.records}
    foreign = {"dead-letters", "logs", "metrics"}  # what others have written, as it came
    known = {name for name, topic in ICD.topics.items() if topic.message} | {*headers_of(ICD), *own, *foreign}
    assert known == set(ICD.topics)
    assert all(message in ICD.messages for _, message in headers_of(ICD).values())


def test_the_test_alert_has_a_condition_that_disturbs_least():
    condition = ICD.conditions[condition_of_test(ICD)]
    assert condition.latching
    assert not condition.on_delay
    assert condition.priority == "LOW"


@pytest.mark.parametrize("family", FAMILIES)
def test_good_arguments_are_good_and_bad_ones_are_refused_for_their_own_reason(family):
    arguments = Arguments(ICD)
    arguments.check(family, good_argument(ICD, family, 1))
    found = bad_arguments(ICD, family, 1)
    assert {aspect.rpartition("-")[2] for aspect, _, _ in found if aspect.startswith("knows")} == {
        *ICD.arguments[family]
    }
    for aspect, text, words in found:
        with pytest.raises(ArgumentError) as refused:
            arguments.check(family, text)
        assert all(word in str(refused.value) for word in words), aspect


class FakeSystem:
    """As much of a system as the list of the checks needs."""

    def __init__(self, **options: object) -> None:
        self.icd, self.absent = ICD, []
        self.options = CheckOptions(tango_host="", bootstrap="", prefix="", **options)
        self.commanded_class = ICD.classes["SdpSubarray"]
        families = {"SdpIngestNode": "ingest/000{}", "SdpSubarray": "subarray/0{}"}
        self.devices = {name: [] for name in ICD.classes}
        for name, form in families.items():
            self.devices[name] = in_order([f"mid-sdp/{form.format(n)}" for n in (2, 1)], self.options)


def ids(**options: object) -> list[str]:
    found = [case.id for case in catalogue(FakeSystem(**options))]
    assert len(found) == len(set(found))
    return found


def test_a_class_and_a_topic_of_any_flow_have_the_checks_that_follow_from_the_icd():
    class_ = msgspec.structs.replace(ICD.classes["SdpQuality"], name="SdpWeather", device="mid-sdp/weather/0")
    topic = msgspec.structs.replace(ICD.topics["quality"], description="Raw bytes.", header=None)
    system = FakeSystem()
    system.icd = msgspec.structs.replace(
        ICD, classes={**ICD.classes, "SdpWeather": class_}, topics={**ICD.topics, "weather": topic}
    )
    system.devices["SdpWeather"] = ["mid-sdp/weather/0"]
    found = {case.id for case in catalogue(system)}
    quality = {id.replace("SdpQuality", "SdpWeather").replace("topics/quality", "topics/weather") for id in ids()}
    assert {id for id in quality if id.startswith(("SdpWeather/", "topics/weather/"))} - found == {
        id.replace("SdpQuality", "SdpWeather") for id in ids() if id.startswith("SdpQuality/mid-sdp/")
    }
    assert {f"SdpWeather/mid-sdp/weather/0/{aspect}" for aspect in ("answers", "names")} <= found
    record = Record(topic="weather", key=b"mast", value=b"\0", partition=0, offset=0)
    assert find_invalid(system.icd, "weather", topic, [record]) == [], "its bytes are anybody's"


def test_only_the_first_of_a_family_is_looked_at_closely_unless_all_are():
    few, all_of_them = ids(), ids(thorough=True)
    assert "SdpIngestNode/heapRate/pace" in few
    assert "SdpIngestNode/mid-sdp/ingest/0002/names" in few
    assert "SdpIngestNode/mid-sdp/ingest/0002/heapRate/pace" in set(all_of_them) - set(few)


def test_every_entry_has_checks():
    found = set(ids())
    for device_class in ICD.classes.values():
        for one in (*device_class.attributes, *device_class.commands, *device_class.queries):
            assert f"{device_class.name}/{one.name}/exists" in found
    assert {f"topics/{name}/exists" for name in ICD.topics} <= found
    assert {f"SdpAlerts/{name}/enum" for name in ICD.conditions} <= found


def test_a_class_that_the_deployment_does_not_run_is_not_shown():
    system = FakeSystem()
    system.absent = ["SdpMirror", "SdpAlerts"]
    system.icd = msgspec.structs.replace(
        ICD, classes={name: one for name, one in ICD.classes.items() if name not in system.absent}
    )
    found = {case.id: case for case in catalogue(system)}
    assert [id for id in found if id.startswith(("SdpMirror/", "SdpAlerts/"))] == [
        "SdpMirror/devices",
        "SdpAlerts/devices",
    ]
    system.clock = ManualClock(NOW)
    result = decide(found["SdpMirror/devices"], system)
    assert (result.outcome, "SDP_WITHOUT" in result.detail) == ("skipped", True)


def test_a_device_that_does_not_answer_is_one_failure():
    class Database:
        def get_device_info(self, device):
            return SimpleNamespace(exported=True, ds_full_name="SdpFacade/control")

    system = FakeSystem()
    system.clock, system.database = ManualClock(NOW), Database()
    system.devices["SdpMaster"] = ["mid-sdp/control/0"]
    system.is_silent = lambda device: device == "mid-sdp/control/0"
    system.proxy = lambda device: SimpleNamespace(state=nobody)
    found = [case for case in catalogue(system) if case.id.startswith("SdpMaster/")]
    results = [decide(case, system) for case in found]
    assert [one.id for one in results if one.outcome == "failed"] == ["SdpMaster/mid-sdp/control/0/answers"]
    reasons = {one.detail for one in results if one.outcome == "skipped"}
    assert reasons == {"mid-sdp/control/0 does not answer"}


@pytest.mark.parametrize(("age", "found", "waited"), [(2.0, {(0, 7)}, 3.0), (60.0, set(), 0.0)])
def test_a_dead_letter_is_waited_for_while_its_record_is_young(monkeypatch, age, found, waited):
    system = LiveSystem.__new__(LiveSystem)
    system.clock, system.connection = ManualClock(NOW), None
    record = Record(topic="state", key=b"k", value=b"x", partition=0, offset=7, timestamp_us=round((NOW - age) * 1e6))
    letter = dead_letter(record, RecordRejected("schema", "$", "wrong"), by="kit")
    monkeypatch.setattr(live_system, "newest_records", lambda *_: [letter] if system.clock.now() >= NOW + 3 else [])
    assert system.dead_letters("state", [record]) == found
    assert system.clock.now() - NOW == pytest.approx(waited, abs=0.21)


def nobody():
    raise ConnectionError("nobody is there")


def test_what_needs_active_says_so_without_it():
    subarray = "mid-sdp/subarray/01"
    assert "SdpSubarray/Scan/execution" in ids()
    active = ids(active=True, subarray="mid-sdp/subarray/01")
    assert {"SdpSubarray/Scan/durable", f"SdpSubarray/{subarray}/put-back"} <= set(active)
    endings = {f"SdpSubarray/{subarray}/{aspect}" for aspect in ("is-rejected", "fails", "times-out")}
    assert endings <= set(active)
    early = ids(active=True, subarray=subarray, outcome=("On", "FAILED"))
    assert endings <= set(early)
    assert "SdpSubarray/Scan/durable" not in early
    second = ids(active=True, subarray="mid-sdp/subarray/02")
    assert {"SdpSubarray/Scan/durable", "SdpSubarray/mid-sdp/subarray/02/put-back"} <= set(second)


@pytest.mark.parametrize(
    ("outcome", "active", "words"),
    [
        (("Dance", "FAILED"), True, "expected COMMAND=OUTCOME, COMMAND one of On, AssignResources, "),
        (("On", "DONE"), True, "OUTCOME one of REJECTED, FAILED, TIMED_OUT; got COMMAND 'On', OUTCOME 'DONE'"),
        (("On", "FAILED"), False, "expected --active as well"),
        (("On", "FAILED"), True, ""),
        (None, False, ""),
    ],
)
def test_which_outcome_may_be_asked_for(outcome, active, words):
    options = CheckOptions(tango_host="", bootstrap="", prefix="", active=active, outcome=outcome)
    if not words:
        require_outcome(options)
        return
    with pytest.raises(ConfigError, match=re.escape(words)):
        require_outcome(options)


def test_the_walk_begins_and_ends_at_rest():
    assert STEPS[0] == "On"
    assert STEPS[-1][-1] == "Off"


def test_numbers_of_devices():
    node = ICD.classes["SdpIngestNode"]
    assert [number_of(node, name) for name in ("mid-sdp/ingest/0012", "mid-sdp/ingest/x", "a/b/c")] == [12, None, None]


@pytest.mark.parametrize(
    ("pattern", "taken"), [("SdpMaster", True), ("SdpMaster/State", False), ("SdpMaster/h*/type", True), ("Sdp", False)]
)
def test_what_is_asked_for_with_only(pattern, taken):
    assert is_wanted("SdpMaster/healthState/type", (pattern,)) is taken


def test_the_page_stands_alone_and_shows_everything_as_text(tmp_path):
    bad = CheckResult(id="SdpMaster/x/value", outcome="failed", detail="expected 1,\ngot <script>alert(1)</script>")
    write_html(tmp_path / "page.html", [bad], CheckOptions(tango_host="h:1", bootstrap="b:1", prefix="<p>"), NOW)
    text = (tmp_path / "page.html").read_text()
    assert "expected 1, got &lt;script&gt;" in text
    assert "<script" not in text
    assert "&lt;p&gt;" in text
    assert "http" not in text
    assert "1 failed" in text


def test_a_sample_differs_from_one_run_to_the_next():
    one, other = (json.loads(good_argument(ICD, "assignres", run)) for run in (1, 2))
    assert one["execution_block"]["eb_id"] != other["execution_block"]["eb_id"]
    assert msgspec.json.encode(one) != msgspec.json.encode(other)
