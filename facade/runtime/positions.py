"""The places of a device server on its topics: compared with the topics at each opening, and while they are read.

What is compared stands in `facade.bus.offsets`; what comes of it for one topic in `facade.runtime.progress`.
"""

from collections.abc import Mapping

from facade.bus.offsets import TopicWatch, is_other
from facade.bus.port import Reader
from facade.runtime.progress import Progress

_Places = Mapping[str, Mapping[int, int]]


def place(progress: Mapping[str, Progress], watch: TopicWatch) -> list[str]:
    """Let all go on where that is possible, by what is on their topics now; return in words what was wrong.

    Raises
    ------
    BusError
        The broker does not answer.
    """
    extents = watch.extents(list(progress))
    return [
        finding.describe(topic)
        for topic, one in progress.items()
        if topic in extents  # whoever reads it says that it is not there
        for finding in one.place(extents[topic])
    ]


def start(progress: Mapping[str, Progress], further_back: _Places, *, is_restart: bool) -> dict[str, dict[int, int]]:
    """Return where to read from, by topic and partition.

    Parameters
    ----------
    further_back
        Places of topics of which more is to be read again.
    is_restart
        Whether nothing is in memory yet, so that windows are to be rebuilt.
    """
    found: dict[str, dict[int, int]] = {}
    for topic, one in progress.items():
        own = one.rebuild_from() if is_restart else one.next
        found[topic] = one.on_log(dict(further_back.get(topic, own)))
    return found


def have_moved(progress: Mapping[str, Progress], watch: TopicWatch, reader: Reader) -> bool:
    """Return whether a topic is not the one any more that is read, or a place is not on it; never waits."""
    return reader.is_misplaced | any(
        is_other(progress[topic].topic_id, now.id) or progress[topic].lacks(now.partitions)
        for topic, now in watch.step(list(progress)).items()
    )
