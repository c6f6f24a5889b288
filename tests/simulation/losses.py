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
    for slot, before in list(broker.transactions.items()):  # another coordinator goes on
        known = broker.transactions[slot] = before.copy()
        if known.state in ("committing", "aborting"):
            broker.end(slot, known, committed=known.state == "committing")
        elif known.state == "ongoing":
            broker.scheduler.at(known.timeout, broker.time_out, slot, known.number)
