"""The demo: its limits of time, its logins, its TM whose events are lost, and its alarms at the end."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tango
from rich.console import Console

from facade.infra import local
from facade.infra.security import Security
from facade.kernel.clock import ManualClock
from facade.kernel.config import FILE_VARIABLE, Settings
from facade.kernel.errors import InfraError
from facade.kernel.icd.load import load
from sdp_facade_lab import recorded_night
from sdp_facade_lab.debian import UnpackedRoot
from sdp_facade_lab.demo import shipping, tm
from sdp_facade_lab.demo.flows import AlertChapter, CommandChapter
from sdp_facade_lab.demo.options import DemoOptions
from sdp_facade_lab.demo.plan import OBSERVATION, JournalWriter, read_journal
from sdp_facade_lab.demo.report import DemoReport, print_figures, print_verdict
from sdp_facade_lab.demo.scenario import passed_limits, slowness
from sdp_facade_lab.demo.services import bring_up
from sdp_facade_lab.demo.shipping import Shippers
from sdp_facade_lab.demo.staying import what_to_try
from sdp_facade_lab.demo.system import Demo
from sdp_facade_lab.demo.timing import Spread
from sdp_facade_lab.demo.tm import Commanded
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.progress import ProgressLine
from sdp_facade_lab.recorded_night import RecordedNight
from sdp_facade_lab.supervisor import Supervisor
from sdp_facade_lab.tango_side import TangoSide

ICD = load()


def passed(judged: DemoReport, **options: Any) -> list[str]:
    return passed_limits(DemoOptions(**options), ICD, judged)


def report(*baselines: float, recovery: float = 2.0, **changed: Any) -> DemoReport:
    """Return the report of a run in which a device server with nothing in it took so long each time."""
    values = {
        "began": 0.0,
        "nodes": 4,
        "rate": 31_800.0,
        "seconds": 30.0,
        "balanced": True,
        "baselines": list(baselines),
        "slowness": slowness(baselines),
        "drained_after": 1.0,
        "invalid_after": 3.0,
        "recoveries": {"worker": 6.0, "server": recovery, "tables": 100.0},
        "notification_latency": Spread(p50=1.0, p99=2.0, longest=3.0, count=1),
    }
    return DemoReport(**{**values, **changed})


@pytest.mark.parametrize("controller", [True, False])
def test_a_controller_of_ones_own_needs_none_of_the_demo(tmp_path: Path, controller: bool) -> None:
    """D9: the one of the README beside the demo's executed each command a second time."""
    started: list[Any] = []
    demo: Any = SimpleNamespace(
        deployment=SimpleNamespace(
            instances=[], worker=started.append, launch=lambda name, *words, **_: started.append(name)
        ),
        options=DemoOptions(controller=controller),
        executions_file=tmp_path / "none",
    )
    Demo.start_servers(demo)
    assert ("controller" in started) is controller


@pytest.mark.parametrize(
    ("baselines", "recovery", "failures"),
    [((1.0,), 4.9, 0), ((1.0,), 5.1, 1), ((4.5,), 14.9, 0), ((4.5,), 15.1, 1), ((1.0, 4.5), 14.9, 0)],
)
def test_a_slow_machine_has_longer_limits(baselines: tuple[float, ...], recovery: float, failures: int) -> None:
    judged = report(*baselines, recovery=recovery)
    judged.failures = passed(judged)
    assert len(judged.failures) == failures
    assert any("device server killed and started again: values back" in line for line in printed(judged))
    assert ("This machine takes 3.0 times as long" in " ".join(printed(judged))) is (4.5 in baselines)


def test_a_demo_that_saw_no_event_has_failed() -> None:
    assert passed(report(notification_latency=None)) == ["events: expected some of heapRate, got none"]


def printed(of: DemoReport) -> list[str]:
    console = Console(record=True, width=200, file=io.StringIO())
    print_figures(console, of)
    print_verdict(console, of, Path("report.json"))
    return console.export_text().splitlines()


CLOCK = ManualClock()
SECRET = "a password"


class Starts(Supervisor):
    """Notes the settings file of each process instead of starting it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CLOCK)
        self.logins: dict[str, str] = {}

    def start(
        self,
        kind: Any,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        ends: bool = False,
    ) -> Any:
        self.logins[name] = Path((environment or {}).get(FILE_VARIABLE, "")).stem


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    security = Security(tmp_path / "security")
    for role in ("shipper", "inspector"):
        file = security.settings_of(f"sdp-{role}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'[kafka]\n"sasl.username" = "sdp-{role}"\n"sasl.password" = "{SECRET}"\n')
    endpoints = local.Endpoints(
        bootstrap="h:1", tango_host="h:2", topic_prefix="", state_dir=tmp_path, security=security
    )
    options = DemoOptions(secure=True, logs=True, mirror=True, orders=True, state_dir=tmp_path)
    progress = ProgressLine(Console(quiet=True), CLOCK)
    deployment = Deployment(Settings(nodes=1), endpoints, progress, Starts(tmp_path))
    options.folder.mkdir()
    side: Any = SimpleNamespace(
        subarrays=["mid-sdp/subarray/01"], sdp="mid-sdp/control/0", devices={"SdpIngestNode": ["mid-sdp/ingest/0"]}
    )
    report = DemoReport(began=0.0, nodes=4, rate=1.0, seconds=1.0)
    return Demo(
        options=options, progress=progress, report=report, deployment=deployment, tango_side=side, recorder=side
    )


def test_each_process_logs_in_as_its_role_and_tango_clients_do_not(demo: Demo, tmp_path: Path) -> None:
    demo.start_servers()
    demo.start_simulator()
    demo.start_calibration(1)
    demo.start_observation()
    RecordedNight(demo.deployment, tmp_path).record()
    assert isinstance(demo.processes, Starts)
    servers = "alerts calibration control ingest-00 logs mirror quality subarray".split()
    assert demo.processes.logins == {
        **{name: f"sdp-{name.partition('-')[0]}" for name in servers},
        **dict.fromkeys(("aggregate-0", "aggregate-1"), "sdp-aggregate"),
        "tables": "sdp-tables-assemble",
        "logs-aggregate-0": "sdp-logs-aggregate",
        **dict.fromkeys(("controller", "processing", "processing-worker"), "sdp-controller"),
        "simulate": "sdp-ingest-node",
        "calibrate": "sdp-calibration-pipeline",
        "archive-worker": "sdp-archive-run",
        "tm": "",
    }
    assert demo.deployment.logins == {one.removeprefix("sdp-") for one in demo.processes.logins.values() if one}


def test_a_worker_that_reads_further_than_it_needs_hides_no_other(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that got records meanwhile made up for those that were still to be read."""

    def extents(topics: set[str]) -> Any:
        of_heaps = {0: (0, 10), 1: (0, 10)}
        return {name: SimpleNamespace(ranges=of_heaps if name == "ingest.heaps" else {}) for name in topics}

    monkeypatch.setattr(recorded_night, "KafkaTopicWatch", lambda _: SimpleNamespace(extents=extents))
    looks = iter([{0: 15, 1: 5}, {0: 15, 1: 10}])

    def described(*_: object) -> Any:
        at = next(looks).items()
        return SimpleNamespace(
            positions=[SimpleNamespace(topic="ingest.heaps", partition=one, committed=to) for one, to in at]
        )

    monkeypatch.setattr(recorded_night, "describe_group", described)
    RecordedNight(demo.deployment, demo.options.folder).read(demo.deployment, "aggregate")
    assert next(looks, None) is None


@pytest.mark.parametrize(
    ("told", "has_begun"),
    [
        ([], False),
        ([{"name": "Scan", "status": "COMPLETED"}], False),
        ([{"name": "Configure", "status": "UNDELIVERED"}, {"name": "Configure", "status": "SENT"}], False),
        ([{"name": "Configure", "status": "UNDELIVERED"}, {"name": "Configure", "status": "IN_PROGRESS"}], True),
        ([{"name": "Configure", "status": "COMPLETED"}], True),
    ],
)
def test_a_command_has_begun_also_if_it_is_over(told: list[dict[str, str]], has_begun: bool) -> None:
    side: Any = SimpleNamespace(history=lambda device: json.dumps(told))
    assert TangoSide.has_begun(side, "mid-sdp/subarray/01", "Configure") == has_begun


@pytest.mark.parametrize(("is_seen", "moment"), [(True, "while {} executes On"), (False, "after {} executed On")])
def test_a_busy_demo_that_sees_a_command_too_late_goes_on(demo: Demo, is_seen: bool, moment: str) -> None:
    """It waited for the middle of an execution that was over."""
    side: Any = demo.tango_side
    side.has_begun, side.executes = lambda *_: True, lambda *_: is_seen
    assert CommandChapter(demo)._await_execution("On") == moment.format("mid-sdp/subarray/01")


def test_shippers_have_the_login_in_files_of_their_owner(
    demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = UnpackedRoot(tmp_path)
    monkeypatch.setattr(UnpackedRoot, "libraries", [tmp_path])
    (tmp_path / "rsyslog").mkdir()
    monkeypatch.setattr(shipping, "unpacked_packages", lambda *_: root)
    shippers = Shippers(tmp_path / "shippers", lambda _: None)
    shippers.rsyslog(demo.deployment, tmp_path / "log")
    shippers.collectd(demo.deployment, "r01/node-0001")
    rsyslog, collectd = (tmp_path / "shippers" / f"{name}.conf" for name in ("rsyslog", "collectd"))
    assert f'"sasl.username=sdp-shipper", "sasl.password={SECRET}", "compression' in rsyslog.read_text()
    assert f'Property "sasl.password" "{SECRET}"\n' in collectd.read_text()
    assert {file.stat().st_mode & 0o777 for file in (rsyslog, collectd)} == {0o600}


@pytest.mark.parametrize(("version", "is_refused"), [(0x020002FF, True), (0x020600FF, True), (0x020601FF, False)])
def test_shippers_that_kafka_refuses_are_named_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, is_refused: bool
) -> None:
    """Those of Debian 12 tried to log in for ever, and no metrics came."""
    monkeypatch.setattr(UnpackedRoot, "libraries", [tmp_path])
    (tmp_path / "librdkafka.so.1").touch()
    monkeypatch.setattr(shipping, "unpacked_packages", lambda *_: UnpackedRoot(tmp_path))
    monkeypatch.setattr(shipping.ctypes, "CDLL", lambda _: SimpleNamespace(rd_kafka_version=lambda: version))
    with pytest.raises(InfraError, match="--all --no-logs") if is_refused else nullcontext():
        shipping.require_scram(lambda _: None)


def test_the_account_logs_in_as_a_role_that_only_reads(demo: Demo) -> None:
    demo.look("account")
    assert demo.deployment.logins == {"inspector"}
    assert f"{FILE_VARIABLE}={demo.options.state_dir}/security/clients/sdp-inspector.toml" in what_to_try(demo, "")


def test_a_folder_stays_as_its_broker_was_made(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the option, a demo takes the broker of its folder as it is."""
    asked: list[bool | None] = []

    def up(options: local.LocalOptions, **_: Any) -> local.Endpoints:
        asked.append(options.secure)
        return demo.deployment.endpoints

    monkeypatch.setattr(local, "up", up)
    for secure in (True, False):
        bring_up(DemoOptions(secure=secure, state_dir=demo.options.state_dir), lambda _: None)
    assert asked == [True, None]


def test_the_report_names_the_roles_that_logged_in(demo: Demo) -> None:
    for logins, lines in (([], 0), (["aggregate", "inspector"], 1)):
        console = Console(record=True, width=200, file=io.StringIO())
        demo.report.logins = logins
        print_verdict(console, demo.report, Path("report.json"))
        line = "The broker was secured (TLS, SCRAM-SHA-512, rights of the ICD). Logins: aggregate, inspector."
        assert console.export_text().count(line) == lines


LABELS = load().enums["ObsState"]
SUBARRAY_COMMANDS = {command.name: command for command in load().classes["SdpSubarray"].commands}


class Subarray:
    """What TM uses of a subarray that executes each command at once; of those in `silent` no event comes."""

    def __init__(self, *silent: str) -> None:
        self.silent = silent
        self.values = {"State": "OFF", "obsState": LABELS.index("EMPTY"), "longRunningCommandResult": ()}
        self.taken: list[str] = []
        """Names of the commands that were executed, in order."""
        self.listeners: dict[int, tuple[str, Callable[[Any], None]]] = {}

    def command_inout(self, name: str, *arguments: str) -> Any:
        self.taken.append(name)
        id, command = f"{len(self.taken)}_{name}", SUBARRAY_COMMANDS[name]
        states = [command.transitional] * bool(command.transitional) + [command.targets[0]]
        changes: list[tuple[str, Any]] = [("obsState", LABELS.index(one)) for one in states if one in LABELS]
        changes = [("State", command.targets[0])] if command.reports == "State" else changes
        for attribute, value in (*changes, ("longRunningCommandResult", (id, json.dumps([0, "done"])))):
            self.values[attribute] = value
            for listened, listener in list(self.listeners.values()):
                if listened == attribute and name not in self.silent:
                    listener(self.event(attribute))
        return [2], [id]

    def event(self, attribute: str) -> Any:
        value = self.values[attribute]
        lines = len(value) if isinstance(value, tuple) else 1
        # As Tango does: the name in lower case, None for an empty spectrum.
        shown = SimpleNamespace(name=attribute.lower(), value=None if value == () else value, dim_x=lines)
        return SimpleNamespace(err=False, attr_value=shown)

    def state(self) -> tango.DevState:
        return getattr(tango.DevState, str(self.values["State"]))

    def ping(self) -> int:
        return 1

    def get_attribute_config(self, attribute: str) -> Any:
        return SimpleNamespace(enum_labels=LABELS)

    def subscribe_event(self, attribute: str, kind: tango.EventType, listener: Callable[[Any], None]) -> int:
        number = max(self.listeners, default=0) + 1
        self.listeners[number] = (attribute, listener)
        listener(self.event(attribute))
        return number

    def unsubscribe_event(self, number: int) -> None:
        del self.listeners[number]

    def GetCommandHistory(self, most: int) -> str:
        newest = list(enumerate(self.taken, 1))[::-1]
        return json.dumps([{"id": f"{number}_{name}", "name": name} for number, name in newest[:most]])


def test_events_that_never_come_are_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D29: Tango loses events without a word, of a connection that is being made for example."""
    server = Subarray("Configure", "Off")
    monkeypatch.setattr(tm, "_LOOK", 0.01)
    monkeypatch.setattr(tm.tango, "DeviceProxy", lambda name: server)
    journal = JournalWriter(tmp_path / "journal.json")
    Commanded("host:1", "mid-sdp/subarray/01", journal, ManualClock()).go_through(OBSERVATION, 0.0, {})
    given = read_journal(tmp_path / "journal.json").given
    assert server.taken == [step.command for step in OBSERVATION]
    assert [one.id for one in given if one.id] == [f"{n}_{name}" for n, name in enumerate(server.taken, 1)]
    assert server.values["State"] == "OFF"
    assert len(server.listeners) == 3


def test_an_alarm_that_is_shown_as_shelved_for_a_moment_longer_is_acknowledged() -> None:
    """Beside other work, the status of a demo that stays was ATTENTION for good."""
    clock, acted = ManualClock(), list[tuple[str, float]]()
    alarm = {"condition": "coolantWarm", "source": "cooling/2", "occurrence": 7}

    def alarms(device: str) -> list[dict[str, Any]]:
        times = dict(acted)
        if "Acknowledge" in times:
            return []
        is_shown = "Unshelve" in times and clock.now() > times["Unshelve"] + 3.0
        return [{**alarm, "state": "RTNUN" if is_shown else "SHLVD"}]

    def act(command: str, argument: str) -> None:
        acted.append((command, clock.now()))

    chapter = AlertChapter.__new__(AlertChapter)
    chapter._name, chapter._progress = "mid-sdp/alerts/0", ProgressLine(Console(quiet=True), clock)
    source = SimpleNamespace(clear=lambda *_: None)
    chapter._sources, chapter._sent = dict.fromkeys(("cooling/2", "buffer/0"), source), {"cooling/2": 0, "buffer/0": 0}
    chapter._actions = set()
    deployment = SimpleNamespace(alarms=alarms, proxy=lambda _: SimpleNamespace(command_inout=act))
    chapter._demo = SimpleNamespace(deployment=deployment)

    chapter.tidy_up()

    assert [command for command, _ in acted] == ["Unshelve", "Acknowledge"]
