"""The model of the brokers tells what a real broker tells."""

from importlib import import_module

import pytest

from facade.infra import local
from tests.simulation.scenarios.play import SCENARIOS, Scenario
from tests.simulation.scenarios.stages import on_kafka, on_model

for _module in ("groups", "logs", "transactions"):
    import_module(f"tests.simulation.scenarios.{_module}")

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("play", SCENARIOS, ids=lambda play: play.__name__)
def test_the_model_tells_what_a_broker_tells(infra: local.Endpoints, play: Scenario) -> None:
    with on_kafka(infra.bootstrap, play.__name__) as one:
        play(one)
    assert on_model(play) == one.told
