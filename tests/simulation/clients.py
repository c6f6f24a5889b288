"""The clients of a process, made on simulated brokers."""

from facade.kernel.bus.kafka.connection import Clients
from tests.simulation.admin import SimulatedAdmin
from tests.simulation.broker import Broker
from tests.simulation.consumers import SimulatedConsumer
from tests.simulation.groups import Groups
from tests.simulation.network import Network
from tests.simulation.producers import SimulatedProducer
from tests.simulation.scheduler import Process


def clients(process: Process, broker: Broker, groups: Groups, network: Network) -> Clients:
    """Return how clients of a process are made on simulated brokers."""
    return Clients(
        consumer=lambda config: SimulatedConsumer(process, broker, groups, network, config),  # type: ignore[arg-type,return-value]
        producer=lambda config: SimulatedProducer(process, broker, groups, network, config),  # type: ignore[arg-type,return-value]
        admin=lambda config: SimulatedAdmin(process, broker, groups, network, config),  # type: ignore[arg-type,return-value]
    )
