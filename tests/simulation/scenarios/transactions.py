"""Scenarios of transactions: what is committed, taken back, fenced, and what readers see meanwhile."""

from confluent_kafka import TopicPartition

from tests.simulation.scenarios.play import WAIT, Play, scenario


@scenario
def transactions_are_committed(play: Play) -> None:
    topic, producer = play.topic(), play.transactional("a")
    for number in range(3):
        play.commit(producer, topic, f"{number}.1", f"{number}.2")
    play.show("committed", topic)
    play.ends("ends", topic)


@scenario
def transactions_are_taken_back(play: Play) -> None:
    topic, producer = play.topic(), play.transactional("a")
    producer.begin_transaction()
    play.send(producer, topic, "a", "b")
    producer.abort_transaction(WAIT)
    play.commit(producer, topic, "c")
    play.show("committed", topic)
    play.show("all", topic, **{"isolation.level": "read_uncommitted"})


@scenario
def empty_transactions_leave_no_mark(play: Play) -> None:
    topic, producer = play.topic(), play.transactional("a")
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        play.attempt("end", lambda end=end: end(WAIT))
    play.ends("ends", topic)


@scenario
def a_transaction_over_partitions_marks_each(play: Play) -> None:
    topic, producer = play.topic(partitions=3), play.transactional("a")
    producer.begin_transaction()
    play.send(producer, topic, "a", at=0)
    play.send(producer, topic, "b", "c", at=2)
    producer.commit_transaction(WAIT)
    for partition in range(3):
        play.show(f"partition {partition}", topic, at=partition)


@scenario
def nothing_is_shown_behind_an_open_transaction(play: Play) -> None:
    topic, producer, other = play.topic(), play.transactional("a"), play.producer()
    play.send(other, topic, "before")
    producer.begin_transaction()
    play.send(producer, topic, "within")
    play.send(other, topic, "behind")
    play.show("committed", topic, is_settled=False)
    play.show("all", topic, **{"isolation.level": "read_uncommitted"})
    play.ends("ends", topic)
    consumer = play.consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    play.tell("while it is open", *play.read(consumer, is_settled=False))
    play.tell("known to the client", consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True))
    producer.commit_transaction(WAIT)
    play.tell("once it is committed", *play.read(consumer))
    play.ends("ends", topic)


@scenario
def two_open_transactions_hold_back_from_the_first_on(play: Play) -> None:
    topic, first, second = play.topic(), play.transactional("a"), play.transactional("b")
    for producer, value in ((first, "a"), (second, "b")):
        producer.begin_transaction()
        play.send(producer, topic, value)
    second.commit_transaction(WAIT)
    play.ends("ends", topic, 3)
    play.show("the second is committed", topic, is_settled=False)
    first.abort_transaction(WAIT)
    play.show("the first is taken back", topic)
    play.ends("ends", topic)


@scenario
def calls_in_a_wrong_order(play: Play) -> None:
    topic, producer = play.topic(), play.producer("a")
    play.attempt("begin before init", producer.begin_transaction)
    producer.init_transactions(WAIT)
    play.attempt("produce outside", lambda: producer.produce(topic, b"x"))
    play.attempt("commit outside", lambda: producer.commit_transaction(WAIT))
    producer.begin_transaction()
    play.attempt("begin within", producer.begin_transaction)
    play.send(producer, topic, "a")
    play.attempt("commit", lambda: producer.commit_transaction(WAIT))
    play.show("committed", topic)


@scenario
def a_second_holder_fences_the_first(play: Play) -> None:
    topic, first = play.topic(), play.transactional("a")
    first.begin_transaction()
    play.send(first, topic, "first")
    second = play.transactional("a")
    play.show("what was open is taken back", topic)
    play.commit(second, topic, "second")
    play.attempt("the first commits", lambda: first.commit_transaction(WAIT))
    play.attempt("the first begins", first.begin_transaction)
    play.attempt("the first takes back", lambda: first.abort_transaction(WAIT))
    play.commit(second, topic, "third")
    play.show("committed", topic)


@scenario
def a_fenced_holder_that_writes_is_told_so(play: Play) -> None:
    topic, first = play.topic(), play.transactional("a")
    play.commit(first, topic, "first")
    play.transactional("a")
    first.begin_transaction()
    play.send(first, topic, "late")
    play.attempt("the first produces", lambda: first.produce(topic, b"later"))
    play.attempt("the first commits", lambda: first.commit_transaction(WAIT))
    play.show("committed", topic)


@scenario
def a_transaction_that_takes_too_long_is_taken_back(play: Play) -> None:
    topic, producer = play.topic(), play.transactional("a", **{"transaction.timeout.ms": 1000})
    producer.begin_transaction()
    play.send(producer, topic, "late")
    consumer = play.consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    play.tell("while it is open", *play.read(consumer, is_settled=False))
    play.tell("once it is over", *play.read(consumer))
    play.attempt("commit", lambda: producer.commit_transaction(WAIT))
    play.attempt("begin", producer.begin_transaction)
    successor = play.transactional("a")
    play.commit(successor, topic, "next")
    play.show("committed", topic)


@scenario
def offsets_are_committed_with_a_transaction(play: Play) -> None:
    topic, producer, stranger = play.topic(partitions=2), play.transactional("a"), play.consumer("group")
    play.committed("nothing yet", stranger, topic, 2)
    for offset, end in ((5, producer.commit_transaction), (9, producer.abort_transaction)):
        producer.begin_transaction()
        places = [TopicPartition(topic, 0, offset)]
        producer.send_offsets_to_transaction(places, stranger.consumer_group_metadata(), WAIT)
        play.attempt(f"end with {offset}", lambda end=end: end(WAIT))
        play.committed("committed", stranger, topic, 2)
    play.ends("the topic has no mark", topic)


@scenario
def the_groups_answer_waits_for_a_transaction(play: Play) -> None:
    topic, producer, stranger = play.topic(), play.transactional("a"), play.consumer("group")
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], stranger.consumer_group_metadata(), WAIT)
    play.committed("while it is open", stranger, topic, wait=1.0)
    loose = play.consumer("group", **{"isolation.level": "read_uncommitted"})
    play.committed("read uncommitted", loose, topic)
    producer.commit_transaction(WAIT)
    play.committed("once it is committed", stranger, topic)


@scenario
def a_holder_of_one_id_waits_for_the_one_before(play: Play) -> None:
    topic = play.topic(partitions=4)
    for number in range(5):
        producer = play.transactional("a")
        producer.begin_transaction()
        for partition in range(4):
            play.send(producer, topic, f"{number}", at=partition)
        if number % 2:
            producer.commit_transaction(WAIT)
    play.transactional("a")
    for partition in range(4):
        play.show(f"partition {partition}", topic, at=partition)


@scenario
def transactions_follow_each_other_at_once(play: Play) -> None:
    topic, producer = play.topic(), play.transactional("a")
    for number in range(20):
        play.commit(producer, topic, f"{number}")
    play.show("committed", topic)


@scenario
def a_late_end_ends_the_next_transaction(play: Play) -> None:
    topic, producer = play.topic(), play.transactional("a")
    producer.begin_transaction()
    play.send(producer, topic, "first")
    play.hold("EndTxn")
    play.attempt("commit", lambda: producer.commit_transaction(WAIT))
    producer.begin_transaction()
    play.send(producer, topic, "second")
    play.show("before the late one", topic, is_settled=False)
    play.tell("late", play.deliver() or 0)
    play.ends("a mark", topic, 4)
    play.show("behind the late one", topic)
    play.send(producer, topic, "third")
    play.attempt("commit", lambda: producer.commit_transaction(WAIT))
    play.attempt("take back", lambda: producer.abort_transaction(WAIT))
    play.show("committed", topic)


@scenario
def a_batch_that_comes_twice_is_there_once(play: Play) -> None:
    topic, producer = play.topic(), play.producer()
    play.send(producer, topic, "first")
    play.hold("Produce")
    play.send(producer, topic, "second")
    play.show("before the late one", topic)
    play.deliver()
    play.send(producer, topic, "third")
    play.show("behind the late one", topic)


@scenario
def without_numbers_a_batch_that_comes_twice_is_there_twice(play: Play) -> None:
    topic, producer = play.topic(), play.producer(**{"enable.idempotence": False})
    play.hold("Produce")
    play.send(producer, topic, "first")
    play.deliver()
    play.send(producer, topic, "second")
    play.show("behind the late one", topic)
