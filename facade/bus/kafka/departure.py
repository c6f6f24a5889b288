"""How a member of a consumer group goes: others take its partitions at once, or it is expected back under its name."""

import ctypes

from confluent_kafka import Consumer, KafkaException, TopicPartition

from facade.bus.kafka import timeouts
from facade.bus.kafka.connection import Connection

_LOOK = 0.02
"""Time between two looks at the client [s]."""


def leave(connection: Connection, consumer: Consumer, place: TopicPartition) -> bool:
    """Leave a group in which others take over at once; return whether the group is known to know.

    The client says nothing to the group when a static member is closed, so its partitions wait for the session
    time-out. It does when the subscription is given up. The client forgets its member id as it sends that, and the
    answer to a later question on the same connection says that the group has it.

    A member that is alone in its group had better stay: it gets its partitions back as soon as it is started again,
    where an empty group would wait for further members first.

    Parameters
    ----------
    consumer
        Of the member, with nothing left to be committed.
    place
        Any partition of its topics.
    """
    deadline = connection.clock.monotonic() + timeouts.LEAVE
    try:
        consumer.unsubscribe()
        while consumer.memberid():
            if connection.clock.monotonic() > deadline:
                return False
            consumer.consume(1, _LOOK)  # serves the giving up of the partitions, after which the client leaves
        consumer.committed([place], timeout=timeouts.LEAVE)
    except KafkaException:
        return False  # the others take over after the session's time-out
    return True


def retire(consumer: Consumer) -> None:
    """Leave a group member's client to the end of the process, instead of closing it.

    Closing is not safe: an assignment that waits to be served is then served while the client shuts
    down, which waits for ever for an answer, and with the interpreter's lock held, so that no other
    thread could set a limit to it. Its destructor would do the same, so it must never run.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))
