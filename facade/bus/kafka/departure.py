"""How a member of a consumer group goes: others take its partitions at once, or it is expected back under its name."""

import ctypes

from confluent_kafka import Consumer, KafkaException

from facade.bus.kafka.connection import Connection

_WITHIN = 1.0
"""Longest wait for the brokers' answers [s]."""
_LOOK = 0.02
"""Time between two looks at the group [s]."""


def leave(connection: Connection, consumer: Consumer, group: str, name: str) -> bool:
    """Leave a group in which others can take over; return whether it is known that they can.

    The client says nothing to the group when a static member is closed, so that nobody takes its partitions before the
    session time-out. It does when the subscription is given up. A member without others stays: it gets its partitions
    back as soon as it is started again, where an empty group would wait for further members first.

    Parameters
    ----------
    consumer
        Of the member, with nothing left to be committed.
    group, name
        With the deployment's prefix; the name is the static one.
    """
    deadline = connection.clock.monotonic() + _WITHIN
    admin = connection.admin()  # its futures are kept only as long as it lives

    def members() -> set[str]:
        asked = admin.describe_consumer_groups([group], request_timeout=_WITHIN)[group].result(timeout=_WITHIN)
        return {one.group_instance_id or one.member_id for one in asked.members}

    try:
        if not members() - {name}:
            return False
        consumer.unsubscribe()
        while connection.clock.monotonic() < deadline:
            consumer.consume(1, _LOOK)  # serves the giving up of the partitions, after which the client leaves
            if name not in members():
                return True
    except (KafkaException, TimeoutError):
        pass  # the others take over after the session's time-out
    return False


def retire(consumer: Consumer) -> None:
    """Leave a group member's client to the end of the process, instead of closing it.

    Closing is not safe: an assignment that waits to be served is then served while the client shuts
    down, which waits for ever for an answer, and with the interpreter's lock held, so that no other
    thread could set a limit to it. Its destructor would do the same, so it must never run.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))
