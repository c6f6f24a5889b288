"""The kit itself: every field of the ICD has a check or a reason, and every entry has its checks."""

import json
import re
from types import SimpleNamespace

import msgspec
import pytest

from clients.conformance import samples
from clients.conformance.alarm import condition_of_test
from clients.conformance.case import Result, decide
from clients.conformance.catalogue import catalogue, wanted
from clients.conformance.claims import UNCHECKED, claimed
from clients.conformance.command_verdicts import (
    is_walked,
)
from clients.conformance.endings import require_outcome
from clients.conformance.flows import flow_checks
from clients.conformance.options import Options
from clients.conformance.page import page
from clients.conformance.seen import STEPS
from clients.conformance.system import in_order
from clients.conformance.topics import headers_of, invalid
from clients.sample_arguments import FAMILIES
from facade.bus.port import Record
from facade.clock import ManualClock
from facade.errors import ArgumentError, ConfigError
from facade.flows.commands.arguments import Arguments
from facade.icd import model, topic_model
from facade.icd.load import load
from facade.instances import number_of

ICD = load()
NOW = 1_800_000_000.0
COMMANDS = {command.name: command for command in ICD.classes["SdpSubarray"].commands}


def fields() -> set[str]:
    both = {**vars(topic_model), **vars(model)}.values()
    tables = [one for one in both if isinstance(one, type) and issubclass(one, topic_model.IcdTable)]
    return {f"{one.__name__}.{name}" for one in tables for name in one.__struct_fields__}


def test_every_field_of_the_icd_is_checked_or_it_is_said_why_not():
    assert claimed(ICD) | set(UNCHECKED) == fields()
    assert not claimed(ICD) & set(UNCHECKED)
    assert all(len(reason) > 10 for reason in UNCHECKED.values())


def test_every_query_is_asked_in_some_way():
    found = set(ids(active=True, subarray="mid-sdp/subarray/01"))
    for device_class in ICD.classes.values():
        for query in device_class.queries:
            id = f"{device_class.name}/{query.name}"
            assert found & {f"{id}/{aspect}" for aspect in ("answer", "content", "effect")}, id


def test_every_command_of_a_subarray_is_given():
    assert {name for name, command in COMMANDS.items() if is_walked(command)} == set(COMMANDS)


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
    arguments.check(family, samples.good(ICD, family, "1"))
    found = samples.bad(ICD, family, "1")
    assert {one.aspect.rpartition("-")[2] for one in found if one.aspect.startswith("knows")} == {
        *ICD.arguments[family]
    }
    for one in found:
        with pytest.raises(ArgumentError) as refused:
            arguments.check(family, one.text)
        assert all(word in str(refused.value) for word in one.words), one


class FakeSystem:
    """As much of a system as the list of the checks needs."""

    def __init__(self, **options: object) -> None:
        self.icd, self.absent = ICD, []
        self.options = Options(tango_host="", bootstrap="", prefix="", **options)
        self.walked_class = ICD.classes["SdpSubarray"]
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
    topic = msgspec.structs.replace(ICD.topics["quality"], description="Raw bytes.")
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
    assert {f"SdpWeather/mid-sdp/weather/0/{aspect}" for aspect in ("exported", "answers", "names")} <= found
    record = Record(topic="weather", key=b"mast", value=b"\0", partition=0, offset=0)
    assert invalid(system.icd, "weather", topic, [record]) == [], "its bytes are anybody's"


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
    assert {f"conditions/{name}/state" for name in ICD.conditions} <= found


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
    options = Options(tango_host="", bootstrap="", prefix="", active=active, outcome=outcome)
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
    assert wanted("SdpMaster/healthState/type", (pattern,)) is taken


def test_the_page_stands_alone_and_shows_everything_as_text():
    bad = Result(id="SdpMaster/x/value", outcome="failed", detail="expected 1,\ngot <script>alert(1)</script>")
    text = page([bad], Options(tango_host="h:1", bootstrap="b:1", prefix="<p>"), NOW)
    assert "expected 1, got &lt;script&gt;" in text
    assert "<script" not in text
    assert "&lt;p&gt;" in text
    assert "http" not in text
    assert "1 failed" in text


def test_a_sample_differs_from_one_run_to_the_next():
    one, other = (json.loads(samples.good(ICD, "assignres", run)) for run in ("1", "2"))
    assert one["execution_block"]["eb_id"] != other["execution_block"]["eb_id"]
    assert msgspec.json.encode(one) != msgspec.json.encode(other)
