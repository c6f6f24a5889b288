"""Log lines in both forms, and the level that Tango's admin device sets."""

import io
import logging
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tango
from tango.test_context import DeviceTestContext

from devices.kernel.base import FacadeDevice, device_class
from devices.kernel.server import LogLevels
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.logs import SkaFormatter, start_logging
from tests.support.waiting import HANG

SKA_LINE = re.compile(
    r"1\|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\|(?P<severity>[A-Z]+)\|(?P<thread>[^|]*)\|(?P<function>[^|]*)"
    r"\|(?P<file>[^|]*)#(?P<line>\d+)\|(?P<tags>[^|]*)\|(?P<message>.*)"
)


def line(message: str, *arguments: object, tags: str = "", fail: bool = False) -> dict[str, str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(SkaFormatter(tags))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    if fail:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logger.exception(message, *arguments)
    else:
        logger.warning(message, *arguments)
    (only,) = stream.getvalue().splitlines()
    found = SKA_LINE.fullmatch(only)
    assert found is not None, only
    return found.groupdict()


def test_a_line_in_the_form_of_ska():
    found = line("lag=%d | a|b", 3, tags="worker:aggregate-0")
    assert found["severity"] == "WARNING"
    assert (found["thread"], found["function"], found["file"]) == ("MainThread", "line", "test_logs.py")
    assert (found["tags"], found["message"]) == ("worker:aggregate-0", "lag=3 | a|b")


def test_a_traceback_stays_on_its_line():
    found = line("failed", fail=True)
    assert found["message"].startswith("failed\\nTraceback")
    assert found["message"].endswith("ValueError: two\\nlines")


@pytest.mark.parametrize("variable", ["SDP_LOG_LEVEL", "SDP_LOG_FORMAT"])
def test_nonsense_is_refused(variable):
    with pytest.raises(ConfigError, match=f"{variable}=LOUD: expected one of|{variable}=loud: expected one of"):
        start_logging(environment={variable: "loud"})


@pytest.mark.parametrize(("form", "stream"), [("ska", "stdout"), ("plain", "stderr"), ("", "stderr")])
def test_each_form_goes_to_its_stream(form, stream):
    code = "import logging; from facade.kernel.logs import start_logging; start_logging('a:b'); logging.info('said')"
    environment = {**os.environ, "SDP_LOG_FORMAT": form, "SDP_LOG_LEVEL": "info"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    (said,) = [text for text in (done.stdout, done.stderr) if text]
    assert said == getattr(done, stream)
    assert (SKA_LINE.fullmatch(said.strip()) is not None) == (form == "ska")


class Logger(SimpleNamespace):
    def get_level(self):
        return self.level

    def set_level(self, level):
        self.level = level


@pytest.fixture
def root():
    before = logging.root.level
    yield logging.root
    logging.root.setLevel(before)


def test_the_process_logs_as_its_most_talkative_device(root):
    root.setLevel(logging.INFO)
    one, other = Logger(level=400), Logger(level=400)
    levels = LogLevels(lambda: [one, other])
    levels.start(["-nodb"])
    levels.step()
    assert (one.level, root.level) == (500, logging.INFO)
    for mine, others, expected in (
        (600, 500, "DEBUG"),
        (300, 500, "INFO"),
        (300, 400, "WARNING"),
        (100, 200, "CRITICAL"),
    ):
        one.level, other.level = mine, others
        levels.step()
        assert logging.getLevelName(root.level) == expected
    one.level = other.level = 0
    levels.step()
    assert not logging.getLogger("facade").isEnabledFor(logging.CRITICAL)


def test_tango_s_option_wins_over_the_environment(root):
    root.setLevel(logging.INFO)
    device = Logger(level=600)
    levels = LogLevels(lambda: [device])
    levels.start(["-v4"])
    levels.step()
    assert root.level == logging.DEBUG


@pytest.mark.forked  # one Tango server per process
def test_a_restarted_device_logs_as_before():
    """Tango makes a new device object silent; the level is that of before, also one that a client has set."""
    logging.root.setLevel(logging.INFO)
    made = device_class(load(), "SdpBus", FacadeDevice)
    with DeviceTestContext(made, process=False, timeout=HANG) as proxy:
        levels = LogLevels(lambda: [device.get_logger() for device in FacadeDevice.present.values()])
        levels.start([])
        admin, name = tango.DeviceProxy(proxy.adm_name()), proxy.dev_name()
        for tango_level, level in ((4, logging.INFO), (5, logging.DEBUG)):
            admin.SetLoggingLevel([[tango_level], [name]])
            admin.DevRestart(name)
            levels.step()
            assert logging.root.level == level
            assert list(admin.GetLoggingLevel([name])[0]) == [tango_level]
