"""The example flow, installed beside our wheel: all of the system has it, with no line of ours changed."""

import os
import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import pytest
import tango
import yaml
from confluent_kafka import Producer

from tests.support.deployment import BUS, Deployment
from tests.support.waiting import until, until_equal
from tests.support.wheels import build

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.xdist_group("wheel")]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "weather"
MOST_LINES = 150
WEATHER = "mid-sdp/weather/0"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both wheels installed; the libraries are those of this environment."""
    wheels = [wheel, build("wheel", EXAMPLE, tmp_path_factory.mktemp("theirs"))]
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*argv, *map(str, wheels)], capture_output=True, check=True)
    return folder


def facade(installed: Path, *arguments: str, **environment: str) -> str:
    """Run `sdp-facade` with what is installed there, far from the source tree."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "sdp-facade"), *arguments],
        env={**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "120", **environment},
        cwd=installed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_is_small():
    lines = [line for file in EXAMPLE.rglob("*.py") for line in file.read_text().splitlines()]
    assert len(lines) <= MOST_LINES


def test_the_page_shows_the_example_as_it_is():
    page = (ROOT / "docs" / "how-to" / "add-a-flow.md").read_text()
    blocks = [block.split("```")[0].split("\n", 1) for block in page.split("```")[1::2]]
    shown = [(head.partition('title="')[2].rstrip('"'), code) for head, code in blocks if "title=" in head]
    assert shown
    for name, code in shown:
        assert code.strip() in (EXAMPLE / name).read_text(), f"{name}: not as in the page"


def test_the_page_about_tests_has_tests_that_pass(installed: Path, tmp_path: Path):
    page = (ROOT / "docs" / "how-to" / "test-a-flow.md").read_text()
    file = tmp_path / "test_weather.py"
    file.write_text(page.partition(f'```python title="{file.name}"\n')[2].partition("```")[0])
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


SILENT_STATION = """
from facade.kernel.bus.port import Record
from facade.kernel.clock import SECOND, as_time
from facade.kernel.icd.load import load
from sdp_weather.flow import WeatherFlow

now, flow = as_time(1_795_167_600), WeatherFlow(load(), "mid-sdp/weather/0")
for station, age, wind in ((b"north", 61, 30.0), (b"south", 1, 3.0)):
    report = b'{"schema":"weather/1","station":"%s","time":%d,"wind_speed":%f}' % (station, now - age * SECOND, wind)
    flow.fold(Record(topic="weather", key=station, value=report), count=True)
print({name: (one.value, str(one.quality)) for _, name, one in flow.readings(now)})
"""


def test_a_silent_station_is_not_shown_beside_one_that_reports(installed: Path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    argv = [sys.executable, "-c", SILENT_STATION]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = literal_eval(done.stdout)
    assert (shown["windSpeed"][0], shown["stations"][0], shown["State"][0]) == (3.0, 1, "ON")


def test_the_interface_has_it(installed: Path, tmp_path: Path):
    facade(installed, "icd", "check")
    assert "weather" in facade(installed, "--help")
    facade(installed, "icd", "export", "reference", "--to", str(tmp_path))
    assert "windSpeed" in (tmp_path / "docs" / "reference" / "SdpWeather.md").read_text()
    assert '"station": "north"' in (tmp_path / "docs" / "reference" / "messages.md").read_text()
    facade(installed, "icd", "export", "asyncapi", "--to", str(tmp_path))
    document = yaml.safe_load((tmp_path / "schemas" / "asyncapi.yaml").read_text())
    assert "- You have a weather station: write `weather.raw`." in document["info"]["description"]
    assert document["operations"]["weatherStationSendsWeatherRaw"]["summary"] == "Send a measurement."
    (example,) = document["components"]["messages"]["weather-raw"]["examples"]
    assert example["payload"]["station"] == "north"


@pytest.fixture(scope="module")
def site(installed: Path, tmp_path_factory: pytest.TempPathFactory, infra) -> Iterator[Deployment]:
    """Give a deployment of which each process has what is installed there."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(installed)
    try:
        with Deployment(infra, tmp_path_factory.mktemp("weather"), nodes=1) as deployment:
            deployment.command("topics", "create")
            deployment.command("register", TANGO_HOST=deployment.tango_host)
            yield deployment
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def measure(deployment: Deployment, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": deployment.bootstrap})
    for value in values:
        producer.produce(deployment.topic("weather.raw"), value, b"north")
    assert producer.flush(60) == 0


def test_it_runs_in_the_real_system(site: Deployment):
    """Worker, device, account, alert and dead letter; and the conformance kit finds nothing wrong with its device."""
    for instance in ("weather", "control", "alerts"):
        site.server(instance)
    site.start("weather-worker", ["sdp-facade", "weather", "--slot", "0"])
    now_us = round(time.time() * 1e6)
    measurement = b'{"schema":"weather-raw/1","station":"north","time":%d,"knots":%s}'
    measure(site, measurement % (now_us, b"40"), b"nonsense")

    def wind() -> tuple[float, tango.AttrQuality]:
        found = site.proxy(WEATHER).read_attribute("windSpeed")
        return found.value, found.quality

    until_equal(wind, (20.58, tango.AttrQuality.ATTR_ALARM), "the wind in m/s")
    account = {"weatherRawUsed": 1, "weatherRawDeadLettered": 1, "weatherRawBalance": 0}
    until_equal(lambda: site.read(BUS, *account), account, "its account on SdpBus")
    until(lambda: str(site.proxy("mid-sdp/alerts/0").windHigh) in ("UNACK", "1"), "the alarm")
    site.command("conformance", "--only", "SdpWeather", "--only", "topics/weather", "--only", "topics/weather.raw")
