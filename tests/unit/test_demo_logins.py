"""On a secured broker, each process of a demo logs in as its own role of the ICD, and none as the administrator."""

import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from facade.infra import local
from facade.infra.security import Security
from facade.kernel.clock import ManualClock
from facade.kernel.config import FILE_VARIABLE, Settings
from facade.kernel.errors import InfraError
from sdp_facade_lab.debian import UnpackedRoot
from sdp_facade_lab.demo import shipping
from sdp_facade_lab.demo.options import DemoOptions
from sdp_facade_lab.demo.report import DemoReport, print_verdict
from sdp_facade_lab.demo.services import bring_up
from sdp_facade_lab.demo.shipping import Shippers
from sdp_facade_lab.demo.staying import what_to_try
from sdp_facade_lab.demo.system import Demo
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.progress import ProgressLine
from sdp_facade_lab.recorded_night import RecordedNight
from sdp_facade_lab.supervisor import Supervisor

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
