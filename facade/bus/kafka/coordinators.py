"""Questions to the coordinator of a consumer group, for commands that end: the client's own time-out is not safe.

The client aborts its process where it finds the coordinator after the time-out of such a request (librdkafka issue
4605, open in version 2.16). So the request has no time-out that ever comes, and the wait for its answer has one.
A process that goes on working asks no coordinator this way: the request may stay under way until the process ends.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException

_NEVER = 3600.0
"""Time-out of the request [s], the longest that the client takes."""


def ask_coordinator(
    question: Callable[..., dict[str, Future[Any]]], group: str, *, within: float, about: object = None, **options: Any
) -> Any:
    """Return what the coordinator of a group answers to a question.

    Parameters
    ----------
    question
        A method of `confluent_kafka.admin.AdminClient`.
    group
        By its name on the brokers.
    within
        Longest wait [s].
    about
        What the method takes for each group; None: the group's name.

    Raises
    ------
    KafkaException
        It refuses, or does not answer in time.
    """
    answer = question([group if about is None else about], request_timeout=_NEVER, **options)[group]
    try:
        return answer.result(timeout=within)
    except TimeoutError:
        text = f"its coordinator did not answer within {within:g} s"
        raise KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, text)) from None
