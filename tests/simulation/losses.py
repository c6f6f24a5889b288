"""What brokers lose: records that are deleted, ends of logs that were not synced."""

from tests.simulation.broker import Broker, Place


def delete(broker: Broker, place: Place, before: int) -> None:
    """Remove records before an offset, as an administrator does."""
    broker.deleted[place[0]] += broker.topics[place[0]].partitions[place[1]].remove(before)


def cut_power(broker: Broker, share: float, most: int) -> None:
    """Lose ends of logs, each by itself, and of what the coordinators of groups and transactions have written.

    Parameters
    ----------
    share
        Part of the logs that lose something.
    most
        Entries that one log loses at most.
    """
    random = broker.scheduler.random
    decided = [
        (slot, known.producer, set(known.unmarked))
        for slot, known in broker.transactions.items()
        if known.state == "committing"
    ]
    for name, topic in broker.topics.items():
        for partition in topic.partitions:
            broker.lost[name] += partition.cut(partition.end - (random.randint(1, most) * (random.random() < share)))
    for _ in range(random.randint(1, most) * (random.random() < share)):
        if broker.commits:
            group, offsets = broker.commits.pop()
            broker.committed[group] = offsets
    for _ in range(random.randint(1, most) * (random.random() < share)):
        if broker.changes:
            slot, before = broker.changes.pop()
            broker.transactions.pop(slot, None)
            broker.transactions |= {} if before is None else {slot: before}
    for slot, producer, places in decided:
        _lose_undecided(broker, slot, producer, places)
    for slot, before in list(broker.transactions.items()):  # another coordinator goes on
        known = broker.transactions[slot] = before.copy()
        if known.state in ("committing", "aborting"):
            broker.end(slot, known, committed=known.state == "committing")
        elif known.state == "ongoing":
            broker.scheduler.at(known.timeout, broker.time_out, slot, known.number)


def _lose_undecided(broker: Broker, slot: str, producer: int, places: set[Place]) -> None:
    """Take note of records that will be aborted: their commit was forgotten before their mark was written."""
    known = broker.transactions.get(slot)
    if known is not None and known.state in ("committing", "committed"):
        return
    for place in places:
        if (partition := broker.partition(place)) is not None:
            broker.lost[place[0]] += [one for one in partition.entries if one.attempt == producer and not one.is_mark]
