"""Where scenarios are played: on a real broker, and on the model of the brokers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.config import Settings
from tests.simulation.broker import Broker
from tests.simulation.clients import clients
from tests.simulation.groups import Groups
from tests.simulation.network import Network
from tests.simulation.scenarios.play import Play, Scenario
from tests.simulation.scheduler import HostClock, Process, Scheduler
from tests.support.kafka_proxy import KafkaProxy

_REQUESTS = {"Produce": 0, "EndTxn": 26}
"""Kafka's keys of the requests that a scenario may hold."""


@contextmanager
def on_kafka(bootstrap: str, name: str) -> Iterator[Play]:
    """Give what a scenario is played on with a real broker."""
    with KafkaProxy(bootstrap) as proxy:
        prefix = f"{name}-{time.monotonic_ns()}."
        connection = Connection(Settings(bootstrap=proxy.bootstrap, prefix=prefix))
        yield Play(connection, lambda what: proxy.hold_next(_REQUESTS[what]), proxy.deliver)


def on_model(play: Scenario, seed: int = 1) -> list[str]:
    """Play a scenario on the model; return what was told."""
    scheduler = Scheduler(seed)
    network = Network(scheduler, _say_nothing)
    broker = Broker(scheduler, {}, "", _say_nothing)
    groups = Groups(scheduler, broker, _say_nothing)
    process = Process(scheduler, "scenario", HostClock(scheduler))
    made = count(1)

    def own() -> Clients:
        """Give each client a process of its own: of two of one slot in a process the first would be given up."""
        return clients(Process(scheduler, f"client-{next(made)}", process.clock), broker, groups, network)

    connection = Connection(
        Settings(prefix="model."),
        clock=process.clock,
        clients=Clients(
            consumer=lambda config: own().consumer(config),
            producer=lambda config: own().producer(config),
            admin=lambda config: own().admin(config),
        ),
    )
    one = Play(
        connection, lambda what: network.overtakings.append((what, 10**9)), lambda: network.overtaken.pop().arrive()
    )
    ended: list[BaseException | None] = []
    process.on_end = ended.append
    process.spawn(lambda: play(one))
    _tidy(scheduler, broker)
    scheduler.run(1000.0, lambda: bool(ended))
    process.kill()
    if not ended:
        one.tell("never: the end of the scenario")
    elif ended[0] is not None:
        raise ended[0]
    return one.told


def _say_nothing(who: str, what: str) -> None:
    pass


def _tidy(scheduler: Scheduler, broker: Broker) -> None:
    broker.tidy()
    scheduler.at(1.0, _tidy, scheduler, broker)
