"""What all tests share: one Kafka broker and one Tango database for a test run, on free ports."""

import gc
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from facade.infra import local
from sdp_facade_lab.deployment import Broker
from tests.support import run_end
from tests.support.deployment import Deployment
from tests.support.examples import PROFILE
from tests.support.wheels import build

# The same examples each time: a run tells about the change, not about its luck; see tests/support/examples.py.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For `make mutation`: that a test fails is all that counts.
settings.register_profile(
    "unshrunk",
    settings.get_profile("fixed"),
    phases=(Phase.explicit, Phase.generate),
    database=None,
)
settings.load_profile(PROFILE)

# A shell that starts a job in the background makes it ignore SIGINT, and all that it starts in turn.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Whoever runs pytest without `make`: test modules, and what tests start, are compiled once and not by each process.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Brokers of tests live for seconds: the quick compiler alone halves the processor time of their starts.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")


# Beyond fixtures: a run that is killed leaves nothing running.
run_end.watch()

# Modules and collected tests stay to the end: no search for garbage looks at them, neither now nor later.
gc.disable()


def pytest_sessionstart() -> None:
    """Stop where the environment is older than ``pyproject.toml``: what it declares is installed with the package."""
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, entries in declared.items():
        if missing := entries.keys() - {point.name for point in entry_points(group=group)}:
            pytest.exit(f"entry points {group}: {', '.join(sorted(missing))} are not installed; run scripts/bootstrap")


Deploy = Callable[..., Deployment]

_LONGEST_ID = 80


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the last modules, which have the longest tests.

    One of those that begins when all others have ended would keep the other processes idle. Before them come those that
    fork: the child of a process that has been a client of Tango waits for seconds on what it has inherited.
    """
    place = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (item.get_closest_marker("forked") is None, -place[item.path]))


def pytest_collection_finish() -> None:
    """Look for garbage from now on: only the tests make any."""
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name long values by their size: a report of 100,000 brackets cannot be read."""
    too_long = isinstance(val, str | bytes) and len(val) > _LONGEST_ID
    return f"{type(val).__name__} of {len(val)}" if too_long else None


@pytest.fixture(scope="session")
def infra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local.Endpoints]:
    """Return the addresses of a real broker and a real Tango database that belong to this run only."""
    state_dir = tmp_path_factory.mktemp("infra")
    try:
        yield local.up(local.LocalOptions(state_dir=state_dir))
    finally:
        local.down(state_dir, wipe=True)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return our own wheel; who uses it is in one group, so that it is built once."""
    return build("wheel", Path(__file__).parents[1], tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def deploy(infra: local.Endpoints, tmp_path: Path) -> Iterator[Deploy]:
    """Return a maker of deployments, with topics and devices of their own, that end with the test."""
    with ExitStack() as stack:
        # A test that stopped the broker and failed must not take the next ones with it.
        stack.callback(_await_broker, infra)

        def make(*, prepare: bool = True, **options: int | str) -> Deployment:
            deployment = Deployment(infra, tmp_path, **options)
            with ThreadPoolExecutor(1) as pool:  # the broker needs a second for its topics, as a database for its start
                made = pool.submit(deployment.create_topics) if prepare else None
                stack.enter_context(deployment)
            # Before the topics are deleted, which needs a broker.
            stack.callback(_await_broker, infra)
            if made:
                assert made.result() == []
                deployment.enter_devices()
            return deployment

        yield make


def _await_broker(infra: local.Endpoints) -> None:
    broker = Broker(infra.state_dir)
    if broker.pid:
        broker.thaw()
    else:
        broker.start()
