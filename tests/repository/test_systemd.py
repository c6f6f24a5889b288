"""The systemd units: systemd takes them, and what they start and set is there."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from facade.kernel.bus.kafka.connection import refusals
from facade.kernel.config import load_settings
from facade.kernel.manifest import manifests
from facade.tools.config import PROCESS_VARIABLES
from tests.support.waiting import HANG

pytestmark = pytest.mark.needs("repository")

FOLDER = Path(__file__).parents[2] / "packaging" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
BIN = "/opt/sdp-facade/bin"
PAGE = f"{BIN}/sdp-facade web --port %i"
NOTIFY = f"{BIN}/sdp-facade alerts notify /etc/sdp-facade/notify.toml"
OLOG = f"{BIN}/sdp-facade olog https://olog.example.org/Olog --logbook Operations --login /etc/sdp-facade/olog-login"


def read(file: Path) -> configparser.ConfigParser:
    # Not strict: a setting that stands twice adds to the first one.
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes="#", strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names are as they stand there
    parser.read(file)
    return parser


def test_there_is_a_unit_for_device_servers_and_for_each_worker() -> None:
    started = {read(unit)["Service"]["ExecStart"] for unit in UNITS}
    workers = (" ".join(worker.start) for one in manifests() for worker in one.workers)
    assert started == {
        f"{BIN}/SdpFacade %i",
        *(f"{BIN}/sdp-facade {worker} --slot %i" for worker in workers),
        PAGE,
        NOTIFY,
        OLOG,
    }


def test_the_page_may_write_to_the_folder_of_its_displays() -> None:
    service = read(FOLDER / "sdp-facade-web@.service")["Service"]
    assert service["ProtectSystem"] == "strict"
    folder = service["StateDirectory"].replace("%p", "sdp-facade-web").replace("%i", "8800")
    assert variables("sdp-facade-web-8800.environment")["SDP_WEB_DISPLAYS"] == f"/var/lib/{folder}"


def variables(name: str) -> dict[str, str]:
    lines = [line for line in (FOLDER / name).read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    "name", ["environment", "sdp-facade-aggregate-0.environment", "sdp-facade-web-8800.environment"]
)
def test_an_environment_has_variables_of_processes_only(name: str) -> None:
    assert set(variables(name)) <= set(PROCESS_VARIABLES)


def test_the_shipped_settings_are_right_and_a_principal_can_be_added(tmp_path: Path) -> None:
    own = tmp_path / "aggregate.toml"
    own.write_text('[kafka]\n"sasl.username" = "aggregate"\n')
    site = FOLDER / "site.toml"
    assert not list(refusals(load_settings({"SDP_FACADE_CONFIG": str(site)}).kafka))
    settings = load_settings({"SDP_FACADE_CONFIG": f"{site}:{own}"})
    assert (settings.prefix, settings.topic_replicas) == ("mid.", 3)
    assert settings.kafka["sasl.username"] == "aggregate"
    assert settings.kafka["security.protocol"] == "SASL_SSL"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_them(tmp_path: Path) -> None:
    for name in ("SdpFacade", "sdp-facade"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    files = []
    for unit in [*UNITS, FOLDER / "sdp-facade.target"]:
        # A template is checked as one of its instances, and its program has to be there.
        file = tmp_path / unit.name.replace("@.", "@0.")
        file.write_text(unit.read_text().replace(BIN, str(tmp_path)))
        files.append(str(file))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, timeout=HANG, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "sdp-facade" in line]
    assert ours == []
