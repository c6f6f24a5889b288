"""Scenarios of consumer groups: who gets which partitions, whose offsets are taken, and what is lost."""

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Message, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.simulation.scenarios.play import WAIT, Play, error_text, offsets, scenario

COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


def _serve(play: Play, members: list[Consumer], calls: list[str], wanted: int) -> None:
    """Let members hear of their group until so many calls have been told."""

    def heard() -> bool:
        for member in members:
            calls.extend(error_text(message.error()) for message in member.consume(100, 0.02) if _is_fatal(message))
        return len(calls) >= wanted

    play.until(heard, f"{wanted} calls")
    play.tell("calls", sorted(calls))
    calls.clear()


def _commit(play: Play, what: str, member: Consumer, topic: str, offset: int) -> None:
    places = [TopicPartition(topic, 0, offset)]
    play.attempt(what, lambda: member.commit(offsets=places, asynchronous=False), offsets)


def _send(play: Play, what: str, slot: str, place: TopicPartition, metadata: object) -> None:
    """Commit an offset in a transaction, and tell each step."""
    producer = play.transactional(slot)
    producer.begin_transaction()
    play.attempt(f"{what}: offsets", lambda: producer.send_offsets_to_transaction([place], metadata, WAIT))
    play.attempt(f"{what}: commit", lambda: producer.commit_transaction(WAIT))
    play.attempt(f"{what}: take back", lambda: producer.abort_transaction(WAIT))


@scenario
def one_member_has_all_partitions(play: Play) -> None:
    topic, calls = play.topic(partitions=3), list[str]()
    member = play.member("group", "a", topic, calls)
    _serve(play, [member], calls, 1)
    _commit(play, "commit", member, topic, 4)
    play.committed("committed", member, topic, 3)


@scenario
def two_members_share_and_move_eagerly(play: Play) -> None:
    topic, calls = play.topic(partitions=4), list[str]()
    first = play.member("group", "a", topic, calls)
    _serve(play, [first], calls, 1)
    second = play.member("group", "b", topic, calls)
    _serve(play, [first, second], calls, 3)


@scenario
def two_members_share_and_move_cooperatively(play: Play) -> None:
    topic, calls = play.topic(partitions=4), list[str]()
    first = play.member("group", "a", topic, calls, **COOPERATIVE)
    _serve(play, [first], calls, 1)
    second = play.member("group", "b", topic, calls, **COOPERATIVE)
    _serve(play, [first, second], calls, 2)
    play.tell("a has", sorted(one.partition for one in first.assignment()))
    play.tell("b has", len(second.assignment()))


@scenario
def a_static_member_that_comes_back_gets_its_own_at_once(play: Play) -> None:
    topic, calls = play.topic(partitions=4), list[str]()
    members = [play.member("group", name, topic, calls) for name in "ab"]
    play.until(lambda: _have_each(members, 2), "each has two")
    before = [sorted(one.partition for one in member.assignment()) for member in members]
    calls.clear()
    back = play.member("group", "b", topic, calls)
    _serve(play, [members[0], back], calls, 1)
    play.tell("as before", sorted(one.partition for one in back.assignment()) == before[1])
    play.tell("nothing else", calls)


@scenario
def a_static_member_that_gives_up_its_subscription_leaves(play: Play) -> None:
    topic, calls = play.topic(partitions=4), list[str]()
    members = [play.member("group", name, topic, calls) for name in "ab"]
    play.until(lambda: _have_each(members, 2), "each has two")
    metadata = members[1].consumer_group_metadata()
    calls.clear()
    members[1].unsubscribe()
    _serve(play, members, calls, 3)
    play.until(lambda: _have_each(members[:1], 4), "the other one has all")
    _send(play, "who has left, in a transaction", "s", TopicPartition(topic, 0, 5), metadata)


def _have_each(members: list[Consumer], count: int) -> bool:
    for member in members:
        member.consume(100, 0.02)
    return all(len(member.assignment()) == count for member in members)


@scenario
def a_second_member_of_one_name_fences_the_first(play: Play) -> None:
    topic, calls = play.topic(partitions=2), list[str]()
    first = play.member("group", "a", topic, calls)
    _serve(play, [first], calls, 1)
    metadata = first.consumer_group_metadata()
    second = play.member("group", "a", topic, calls)
    _serve(play, [second], calls, 1)
    place = TopicPartition(topic, 0, 5)
    _send(play, "the first, in a transaction", "s", place, metadata)
    heard: list[str] = []

    def is_told() -> bool:
        heard.extend(error_text(one.error()) for one in first.consume(10, 0.1) if _is_fatal(one))
        return bool(heard)

    play.until(is_told, "the first is told")
    play.tell("the first is told", *heard[:1])
    _commit(play, "the first", first, topic, 5)
    play.committed("committed", second, topic)
    _send(play, "the second, in a transaction", "t", place, second.consumer_group_metadata())
    _commit(play, "the second", second, topic, 6)
    play.committed("committed", second, topic)


def _is_fatal(message: Message) -> bool:
    return message.error() is not None and message.error().code() == KafkaError._FATAL


@scenario
def offsets_of_an_older_generation_are_refused(play: Play) -> None:
    topic, calls = play.topic(partitions=2), list[str]()
    first = play.member("group", "a", topic, calls)
    _serve(play, [first], calls, 1)
    metadata = first.consumer_group_metadata()
    _send(play, "in time", "s", TopicPartition(topic, 0, 5), metadata)
    second = play.member("group", "b", topic, calls)
    _serve(play, [first, second], calls, 3)
    _send(play, "too late", "s", TopicPartition(topic, 0, 6), metadata)
    _send(play, "now", "s", TopicPartition(topic, 0, 7), first.consumer_group_metadata())
    play.committed("committed", first, topic)


@scenario
def offsets_of_a_stranger_are_taken_in_a_transaction_only(play: Play) -> None:
    topic, calls = play.topic(), list[str]()
    stranger = play.consumer("group")
    _commit(play, "nobody is there", stranger, topic, 3)
    member = play.member("group", "a", topic, calls)
    _serve(play, [member], calls, 1)
    _commit(play, "somebody is there", stranger, topic, 4)
    _send(play, "in a transaction", "s", TopicPartition(topic, 0, 5), stranger.consumer_group_metadata())
    play.committed("committed", stranger, topic)


@scenario
def a_member_goes_on_where_its_group_was(play: Play) -> None:
    topic, calls = play.topic(), list[str]()
    play.send(play.producer(), topic, *"abcd")
    stranger = play.consumer("group")
    _commit(play, "set", stranger, topic, 2)
    member = play.member("group", "a", topic, calls)
    play.tell("read", *play.read(member))


@scenario
def a_group_without_offsets_begins_by_its_reset(play: Play) -> None:
    topic = play.topic()
    play.send(play.producer(), topic, *"ab")
    for reset in ("earliest", "latest", "error"):
        member = play.member(f"group {reset}", "a", topic, [], **{"auto.offset.reset": reset})
        play.tell(reset, *play.read(member))
        play.committed(f"{reset}: committed", member, topic)


@scenario
def a_group_that_was_deleted_has_no_offsets(play: Play) -> None:
    topic = play.topic()
    stranger = play.consumer("group")
    play.committed("unknown", stranger, topic)
    _commit(play, "set", stranger, topic, 2)
    play.committed("set", stranger, topic)
    play.each("delete", play.admin.delete_consumer_groups([play.prefix + "group"], request_timeout=WAIT))
    play.committed("lost", stranger, topic)
    play.each("delete again", play.admin.delete_consumer_groups([play.prefix + "group"], request_timeout=WAIT))


@scenario
def an_administrator_sets_offsets(play: Play) -> None:
    topic, calls, group = play.topic(), list[str](), play.prefix + "group"
    play.send(play.producer(), topic, *"abcd")

    def alter(what: str, offset: int) -> None:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])
        answers = play.admin.alter_consumer_group_offsets([wanted], request_timeout=WAIT)
        play.each(
            what, answers, lambda found: [error and error.name() for error in (p.error for p in found.topic_partitions)]
        )

    alter("nobody is there", 3)
    member = play.member("group", "a", topic, calls)
    play.tell("read", *play.read(member))
    alter("somebody is there", 1)
    play.committed("committed", member, topic)
    asked = ConsumerGroupTopicPartitions(group)
    answer = play.admin.list_consumer_group_offsets([asked], request_timeout=WAIT)
    play.each("listed", answer, lambda found: offsets(found.topic_partitions))


@scenario
def groups_are_described(play: Play) -> None:
    topic, calls, group = play.topic(partitions=2), list[str](), play.prefix + "group"
    _describe(play, "unknown", group)
    member = play.member("group", "a", topic, calls)
    _serve(play, [member], calls, 1)
    _describe(play, "with a member", group)
    second = play.member("group", "b", topic, calls)
    _serve(play, [member, second], calls, 3)
    _describe(play, "with two", group)


def _describe(play: Play, what: str, group: str) -> None:
    def show(found) -> object:
        members = [(one.group_instance_id, offsets_of(one.assignment)) for one in found.members]
        return found.state.name, sorted(members)

    play.each(what, play.admin.describe_consumer_groups([group], request_timeout=WAIT), show)


def offsets_of(assignment) -> list[int]:
    return sorted(one.partition for one in assignment.topic_partitions)


@scenario
def a_member_that_is_silent_loses_its_partitions(play: Play) -> None:
    topic, calls = play.topic(partitions=2), list[str]()
    members = [play.member("group", name, topic, calls) for name in "ab"]
    play.until(lambda: _have_each(members, 1), "each has one")
    calls.clear()
    members[1].close()  # it has nothing to serve, else it might wait for ever
    _serve(play, members[:1], calls, 3)


@scenario
def a_group_hears_of_partitions_that_were_added(play: Play) -> None:
    topic, calls = play.topic(), list[str]()
    member = play.member("group", "a", topic, calls)
    _serve(play, [member], calls, 1)
    play.each("add", play.admin.create_partitions([NewPartitions(topic, 2)], operation_timeout=WAIT))
    _serve(play, [member], calls, 2)
