"""The kit itself: every entry of the ICD has its checks."""

import io
import re
from types import SimpleNamespace

import msgspec
import pytest

from facade.flows.commands.arguments import Arguments
from facade.kernel.bus.dead_letters import dead_letter
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.console import Console
from facade.kernel.errors import ArgumentError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.outcome import RecordRejected
from sdp_facade_clients.conformance import live_system, runner
from sdp_facade_clients.conformance.alarm_checks import condition_of_test
from sdp_facade_clients.conformance.checks import CheckOptions, CheckResult, decide, flow_checks
from sdp_facade_clients.conformance.command_checks import is_given, require_outcome
from sdp_facade_clients.conformance.devices import find_invalid, headers_of
from sdp_facade_clients.conformance.live_system import LiveSystem, in_order
from sdp_facade_clients.conformance.runner import catalogue, is_wanted, write_html
from sdp_facade_clients.sample_arguments import FAMILIES, bad_arguments, good_argument

ICD = load()
NOW = 1_800_000_000.0
COMMANDS = {command.name: command for command in ICD.classes["SdpSubarray"].commands}


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
        self.options = CheckOptions(tango_host="", bootstrap="127.0.0.1:1", prefix="", **options)
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


def test_what_was_found_is_printed_although_a_report_cannot_be_written(monkeypatch, tmp_path):
    system = FakeSystem(only=("icd",), html=tmp_path)
    system.topics, system.clock = {}, ManualClock(NOW)
    monkeypatch.setattr(runner, "LiveSystem", lambda *_: system)
    out = io.StringIO()
    assert runner.run(system.options, Console(file=out, width=120), system.clock) == runner.NOT_RUN
    assert "conforms, as far" in out.getvalue()
    assert out.getvalue().endswith(f"could not read or write: [Errno 21] Is a directory: '{tmp_path}'\n")
