"""What goes wrong on the way of a command, each fault by its name: none is lost, doubled or left without an outcome.

One device server with ten subarrays and one controller serve all tests; each test has subarrays of its own. No command
has a deadline: how fast a controller starts again decides nothing.
"""

from collections.abc import Iterator

import pytest

from facade.infra import local
from facade.sdk.controller.simulator.controller import CRASHED
from tests.support.deployment import Deployment
from tests.support.subarrays import Subarrays
from tests.support.waiting import until

# In one group: they share a deployment.
pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.xdist_group("commands")]


@pytest.fixture(scope="module")
def subarrays(infra: local.Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subarrays]:
    folder = tmp_path_factory.mktemp("commands")
    with Deployment(infra, folder, nodes=1, subarrays=10, patient=True) as deployment:
        deployment.prepare()
        yield Subarrays(deployment)


@pytest.mark.parametrize(
    ("moment", "name", "executions", "outcome", "obs_state"),
    [
        ("crash-before", "End", 2, "COMPLETED", "IDLE"),
        ("crash-after", "Configure", 1, "FAILED", "READY"),
    ],
    ids=lambda value: str(value),
)
def test_the_controller_dies(
    subarrays: Subarrays, moment: str, name: str, executions: int, outcome: str, obs_state: str
) -> None:
    """It dies before or after the effect: a repeatable command is executed again, another one has failed and says that
    nobody knows how far it came."""
    device = subarrays.take()
    controller = subarrays.controller(f"{moment}:{name}")
    id = subarrays.give(device, name)
    assert controller.exit_code() == CRASHED
    until(lambda: subarrays.told(device, id)["status"] in ("ACCEPTED", "IN_PROGRESS"), "it is under way")
    subarrays.controller(f"{moment}:{name}")
    told = subarrays.outcome(device, id)
    assert told["status"] == outcome, told
    assert outcome == "COMPLETED" or "interrupted" in told["text"]
    assert subarrays.executions(id) == executions
    subarrays.becomes(device, obs_state)
