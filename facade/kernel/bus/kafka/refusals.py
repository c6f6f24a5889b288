"""Refusals of a broker, in words that name the remedy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from facade.kernel.clock import Clock
from facade.kernel.errors import BusError
from facade.kernel.names import PROGRAM, VARIABLES

if TYPE_CHECKING:  # importing it takes longer than joining a group
    from confluent_kafka.admin import TopicMetadata

Asked = TypeVar("Asked")

READ = "Describe and Read"
WRITE = "Describe and Write"
_SILENT = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
MOVING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
}
"""Errors for a topic that is being created, deleted, or led by another broker: soon over. Client and broker may know
different leader epochs. The last error is the client's own: it asked a broker that does not know the topic yet."""
_PAUSE = 0.1
"""Pause before a request is repeated [s]."""
NO_BROKER: Final = "no broker answers there; start it, or correct KAFKA_BOOTSTRAP"
_FEWER = f"; start more brokers, or ask for fewer replicas with --replicas or {VARIABLES}TOPIC_REPLICAS"
_ABSENT = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}


def explain(error: KafkaError, topic: str, right: str) -> str:
    """Return the fault of a topic, by its name on the brokers, and the remedy; `right`: the rights it needs."""
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"no right to topic {topic}: this process's principal needs {right} on it ({error.name()})"
    if error.code() in _ABSENT:
        return f"topic {topic} does not exist; create it with `{PROGRAM} topics create`"
    return f"topic {topic} cannot be used now: {error.name()}: {error.str()}"


def ask_again(question: Callable[[], Asked], clock: Clock, patience: float) -> Asked:
    """Return the answer to a request about a topic, repeated while the topic is being created or moves.

    `patience`: time for which it is repeated [s].
    """
    deadline = clock.monotonic() + patience
    while True:
        try:
            return question()
        except KafkaException as error:
            if error.args[0].code() not in MOVING or clock.monotonic() >= deadline:
                raise
        clock.sleep(_PAUSE)


def describe(error: BaseException) -> str:
    """Return an error of the client in words that name the remedy."""
    reason = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(reason, KafkaError):
        return str(reason)
    if reason.code() in _SILENT:
        return f"{NO_BROKER} ({reason.str()}); `{PROGRAM} bus check` says if its login or protocol is wrong"
    remedy = _FEWER if reason.code() == KafkaError.INVALID_REPLICATION_FACTOR else ""
    return f"{reason.str()} ({reason.name()}){remedy}".lstrip()


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Raise an error of the client as a `BusError` that begins with a text."""
    try:
        yield
    except KafkaException as error:
        raise BusError(f"{what}: {describe(error)}") from error


def lacks_right(error: BusError) -> bool:
    """Return whether a broker refused a request because this process's principal has no right to the group or topic."""
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in (
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )


def require_present(found: "TopicMetadata | None", topic: str, right: str) -> "TopicMetadata":
    """Return the metadata of a topic that must exist.

    Raises
    ------
    BusError
        The brokers do not have it, do not show it, or cannot serve it now.
    """
    if found is None or found.error is not None or not found.partitions:
        error = found.error if found is not None else None
        raise BusError(explain(error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), topic, right))
    return found
