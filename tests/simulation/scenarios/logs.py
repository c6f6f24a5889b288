"""Scenarios of partitions: places, ends, what is removed, and what is refused."""

from confluent_kafka import OFFSET_END, IsolationLevel, TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec

from tests.simulation.scenarios.play import WAIT, Play, offsets, scenario


@scenario
def records_are_on_the_partition_of_their_key(play: Play) -> None:
    topic, producer = play.topic(partitions=5), play.producer()
    for number in range(12):
        producer.produce(topic, b"x", f"key {number}".encode())
        play.serve(producer)
    for partition in range(5):
        play.show(f"partition {partition}", topic, at=partition)


@scenario
def keys_values_and_headers_come_as_they_were_sent(play: Play) -> None:
    topic, producer = play.topic(), play.producer()
    cases = [
        (None, None, []),
        (b"", b"", [("a", None)]),
        (b"k", b"v", [("a", b"1"), ("a", b"2")]),
        (b"k", None, [("é", b"")]),
    ]
    for key, value, headers in cases:
        producer.produce(topic, value, key, 0, headers=headers)
        play.serve(producer)
    consumer = play.consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = [one for one in (consumer.poll(WAIT) for _ in cases) if one is not None]
    for one in messages:
        play.tell("message", one.key(), one.value(), one.headers(), one.leader_epoch(), one.timestamp()[0])


@scenario
def the_end_is_told_again_behind_new_records(play: Play) -> None:
    topic, producer, consumer = play.topic(), play.producer(), play.consumer()
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    play.tell("at the end", *play.read(consumer))
    for value in ("a", "b"):
        play.send(producer, topic, value)
        play.tell("behind it", *play.read(consumer))
    play.tell("known to the client", consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True))


@scenario
def partitions_are_added_and_taken_away_one_by_one(play: Play) -> None:
    topic, producer, consumer = play.topic(partitions=2), play.producer(), play.consumer()
    for partition in range(2):
        play.send(producer, topic, "a", "b", at=partition)
    consumer.incremental_assign([TopicPartition(topic, 0, 1)])
    play.tell("the first", *play.read(consumer))
    consumer.incremental_assign([TopicPartition(topic, 1, 0)])
    play.tell("the second", *play.read(consumer))
    consumer.incremental_unassign([TopicPartition(topic, 0)])
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])
    play.tell("the first again", *play.read(consumer))


@scenario
def a_place_before_the_log(play: Play) -> None:
    topic, producer = play.topic(), play.producer()
    play.send(producer, topic, *"abcde")
    play.each("remove", play.admin.delete_records([TopicPartition(topic, 0, 3)]), lambda found: found.low_watermark)
    play.ends("ends", topic)
    play.show("error", topic, begin=1)
    for reset in ("earliest", "latest"):
        play.show(reset, topic, begin=1, **{"auto.offset.reset": reset})
    play.show("from the beginning", topic)


@scenario
def a_place_behind_the_log(play: Play) -> None:
    topic, producer = play.topic(), play.producer()
    play.send(producer, topic, *"abc")
    play.show("at the end", topic, begin=3)
    play.show("error", topic, begin=4)
    for reset in ("earliest", "latest"):
        play.show(reset, topic, begin=4, **{"auto.offset.reset": reset})


@scenario
def everything_is_removed(play: Play) -> None:
    topic, producer = play.topic(), play.producer()
    play.send(producer, topic, *"abc")
    play.each("remove", play.admin.delete_records([TopicPartition(topic, 0, -1)]), lambda found: found.low_watermark)
    play.each("beyond", play.admin.delete_records([TopicPartition(topic, 0, 7)]))
    play.ends("ends", topic)
    play.show("nothing", topic)
    play.send(producer, topic, "d")
    play.show("from the beginning", topic)


@scenario
def compaction_keeps_the_newest_of_each_key(play: Play) -> None:
    config = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.001"}
    config["delete_retention_ms"] = "86400000"  # a second pass keeps the tombstone
    topic, producer, slot = play.topic(**config), play.producer(), play.transactional("a")
    for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("b", None)):
        play.send(producer, topic, value, key=key)
    for value, end in (("3", slot.commit_transaction), ("4", slot.abort_transaction)):
        slot.begin_transaction()
        play.send(slot, topic, value, key="c")
        end(WAIT)
    play.sleep(0.2)
    play.send(producer, topic, "end", key="end")  # what is before it is in an older segment

    def is_compacted() -> bool:
        consumer = play.consumer()
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = play.read(consumer)
        consumer.close()
        return not any(text.endswith(("a=1", "b=1")) for text in found)

    play.until(is_compacted, "compacted")
    play.show("newest of a and c", topic, begin=2)
    play.show("within a hole", topic, begin=1)
    play.ends("ends", topic)


@scenario
def a_topic_is_made_again(play: Play) -> None:
    topic, producer = play.topic(), play.producer()
    play.send(producer, topic, *"abc")
    ids = [_id(play, topic)]
    consumer = play.consumer("group")
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    play.committed("before", consumer, topic)
    play.each("delete", play.admin.delete_topics([topic], operation_timeout=WAIT))
    play.until(lambda: not play._knows(topic), "the topic is gone")
    play.topic()
    ids.append(_id(play, topic))
    play.tell("the id is another one", ids[0] != ids[1])
    play.ends("empty", topic)
    play.show("an old place", topic, begin=2)
    play.committed("after", play.consumer("group"), topic)
    play.send(play.producer(), topic, "d")
    play.show("the new one", topic)


def _id(play: Play, topic: str) -> str:
    (future,) = play.admin.describe_topics(TopicCollection([topic]), request_timeout=WAIT).values()
    return str(future.result(WAIT).topic_id)


@scenario
def topics_that_are_not_there(play: Play) -> None:
    topic, producer = play.prefix + "nothing", play.producer()
    try:
        play.send(producer, topic, "x", at=-1)
    except Exception as error:
        play.tell("produce", type(error).__name__)
    known = play.admin.list_topics(topic, timeout=WAIT).topics
    play.tell("metadata", {name: str(found.error and found.error.name()) for name, found in known.items()})
    play.each("describe", play.admin.describe_topics(TopicCollection([topic]), request_timeout=WAIT))
    play.each("offsets", play.admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()}, request_timeout=5.0))
    play.each("delete", play.admin.delete_topics([topic], operation_timeout=WAIT))
    play.show("read", topic, wait=2.0)


@scenario
def partitions_that_are_not_there(play: Play) -> None:
    topic, producer = play.topic(), play.producer()
    play.send(producer, topic, "a")
    play.attempt("produce", lambda: play.send(producer, topic, "b", at=5))
    play.show("read", topic, at=5, wait=2.0)


@scenario
def a_topic_gets_more_partitions(play: Play) -> None:
    topic, producer = play.topic(), play.producer()
    play.send(producer, topic, "a")
    play.each("add", play.admin.create_partitions([NewPartitions(topic, 3)], operation_timeout=WAIT))
    play.each("fewer", play.admin.create_partitions([NewPartitions(topic, 2)], operation_timeout=WAIT))
    play.until(lambda: len(play.admin.list_topics(topic, timeout=WAIT).topics[topic].partitions) == 3, "three")
    play.send(play.producer(), topic, "b", at=2)
    for partition in range(3):
        play.show(f"partition {partition}", topic, at=partition)
    play.each("make again", play.admin.create_topics([NewTopic(topic, 1, 1)], operation_timeout=WAIT))


@scenario
def records_that_are_too_large(play: Play) -> None:
    topic, producer = play.topic(max_message_bytes="1000"), play.producer(**{"message.max.bytes": 5000})
    play.attempt("for the client", lambda: producer.produce(topic, b"x" * 6000))
    play.send(producer, topic, "y" * 2000)
    play.send(producer, topic, "small")
    play.show("read", topic)


@scenario
def a_transaction_with_a_record_that_is_too_large(play: Play) -> None:
    topic, producer = play.topic(max_message_bytes="1000"), play.transactional("a")
    producer.begin_transaction()
    play.send(producer, topic, "small")
    play.send(producer, topic, "y" * 2000)
    play.attempt("commit", lambda: producer.commit_transaction(WAIT))
    play.attempt("take back", lambda: producer.abort_transaction(WAIT))
    for value in ("next", "second", "third"):
        producer.begin_transaction()
        play.send(producer, topic, value)
        if play.attempt(f"commit {value}", lambda: producer.commit_transaction(WAIT) or True) is None:
            play.attempt("take back", lambda: producer.abort_transaction(WAIT))
    play.show("read", topic)


@scenario
def what_waits_is_given_up(play: Play) -> None:
    topic, producer = play.topic(), play.producer(**{"linger.ms": 30_000})
    play.send(play.producer(), topic, "before")
    producer.produce(topic, b"given up", partition=0, on_delivery=play.report)
    producer.purge()
    play.serve(producer)
    play.show("read", topic)


@scenario
def a_transaction_is_taken_back_before_anything_left(play: Play) -> None:
    topic, producer = play.topic(), play.transactional("a", **{"linger.ms": 30_000})
    producer.begin_transaction()
    producer.produce(topic, b"given up", partition=0, on_delivery=play.report)
    play.attempt("take back", lambda: producer.abort_transaction(WAIT))
    play.serve(producer)
    play.ends("ends", topic)


@scenario
def places_of_times(play: Play) -> None:
    topic, producer, consumer = play.topic(partitions=2), play.producer(), play.consumer()
    play.send(producer, topic, "a")
    play.sleep(0.5)
    between = round(play.connection.clock.now() * 1000)
    play.sleep(0.5)
    play.send(producer, topic, "b", "c")
    for name, ms in (("the beginning", 0), ("between", between), ("the future", between + 3_600_000)):
        asked = [TopicPartition(topic, partition, ms) for partition in range(2)]
        play.attempt(f"times: {name}", lambda asked=asked: consumer.offsets_for_times(asked, timeout=WAIT), offsets)


@scenario
def an_administrator_asks_for_ends(play: Play) -> None:
    topic, producer = play.topic(), play.transactional("a")
    play.commit(producer, topic, "a", "b")
    producer.begin_transaction()
    play.send(producer, topic, "open")
    place = TopicPartition(topic, 0)
    for name, spec in (("first", OffsetSpec.earliest()), ("last", OffsetSpec.latest())):
        for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
            answer = play.admin.list_offsets({place: spec}, isolation_level=level, request_timeout=WAIT)
            play.each(f"{name} {level.name}", answer, lambda found: found.offset)
    producer.abort_transaction(WAIT)
