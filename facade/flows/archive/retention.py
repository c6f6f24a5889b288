"""Files of an archive that exceed its retention.

The oldest files of a partition are removed in their order, up to the first one to keep. So the rest has no gap, also if
the worker is killed in between. The newest file of a partition stays at any age: it is the worker's position.

The name of a file suffices to judge it: a record of a later hour begins another file. A name with a future time comes
from a wrong clock: such a file is removed together with the next one.
"""

from collections.abc import Collection, Iterator, Mapping

from facade.durations import parse_duration
from facade.errors import ConfigError
from facade.flows.archive.files import by_partition, hour_in, hour_of, hour_text
from facade.flows.archive.stores import Store


def parse_keep(rules: Collection[str], topics: Collection[str]) -> dict[str, float]:
    """Return the retention of each topic [s] by rules such as ``400d`` for all, or ``ingest.heaps=30d`` for one."""
    found: dict[str, float] = {}
    for rule in rules:
        topic, _, duration = rule.rpartition("=")
        if "=" in rule and topic not in topics:
            raise ConfigError(f"--keep: expected TOPIC=DURATION with some of {', '.join(topics)}, got {rule!r:.100}")
        if topic in found:
            raise ConfigError(f"--keep: expected one rule for {topic or 'all topics'}, got two")
        found[topic] = parse_duration(duration, "--keep")
    default = found.pop("", None)
    return (dict.fromkeys(topics, default) if default else {}) | found


def expired(store: Store, keep: Mapping[str, float], now_us: int) -> Iterator[str]:
    """Return the names of the files to remove, in order. The store is asked during the iteration.

    Parameters
    ----------
    keep
        Retention of each topic [s].
    """
    latest = hour_text(hour_of(now_us) + 1)
    for topic, age in keep.items():
        hour = hour_text(hour_of(now_us - round(age * 1e6)))
        for files in by_partition(store.names(topic)).values():
            due: list[str] = []
            for name in files[:-1]:
                due.append(name)
                if hour_in(name) > latest:
                    continue
                if hour_in(name) >= hour:
                    break
                yield from due
                due.clear()
