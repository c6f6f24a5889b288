"""What is done to the storage of the bus: power cuts that lose what was written last, and acts of administrators."""

import random
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec

from facade.bus.kafka.admin import ask_coordinator
from facade.errors import InfraError
from facade.infra import tools
from facade.infra.kafka import find_java, libraries
from proving.deployment import Deployment
from proving.fault_runs.witness import read_log

_ANSWER = 30.0
_MOST_CUT = 65_536
"""A cut takes at most so much off the end of a partition [bytes]."""
_CUT_OF = 0.3
"""Share of the partitions whose end a power cut loses."""
_WITHIN = 60.0
"""Longest wait for what an act needs [s]."""
_STARTS = 5
_MOST_PARTITIONS = 6
_ANY_AGE = ("--max-transaction-timeout", "0")
_COLUMNS = 6
"""Of a line of Kafka's tool: topic, partition, producer, its epoch, that of the coordinator, first offset."""
_FUTURE = 1_000_000
"""A snapshot of the future is so many records ahead."""

Readers = Mapping[str, tuple[str, Sequence[str]]]
"""By topic, the consumer group that reads it, if it is read by one, and the names of the processes that do so."""


class StorageActs:
    """Does one of the acts at a time; each returns in words what it did."""

    def __init__(self, deployment: Deployment, chance: random.Random, readers: Readers) -> None:
        self._deployment, self._chance, self._readers = deployment, chance, readers
        self._admin = self._client()
        self._data = deployment.endpoints.state_dir / "kafka" / "data"
        self.broker_away = 0.0
        """Longest time from the broker's end until it took connections again [s]."""
        self.acts: dict[str, Callable[[], str]] = {
            "group set back": self.group_back,
            "group set forward": self.group_forward,
            "group deleted": self.group_deleted,
            "topic made again": self.topic_again,
            "partition added": self.partition_added,
            "disk of the broker full": self.disk_full,
            "snapshot of the future": self.future_snapshot,
            "records deleted": self.records_deleted,
        }

    def do(self, act: str) -> str:
        """Do an act by its name."""
        # A client whose connection ended with a broker may abort the process when it asks for a group
        # (librdkafka #5397), so each act has a client of its own.
        self._admin = self._client()
        try:
            return self.acts[act]()
        except KafkaException as error:
            return f"not all of it: {error.args[0].str()}"

    def power_cut(self) -> str:
        """Kill the broker, and let it lose the end of what it had written, as if it had been in the page cache only."""
        began = self._deployment.clock.monotonic()
        self._deployment.broker.kill()
        lost = [f"{name} {size} B" for name, size in self._cut()]
        if self._chance.random() < _CUT_OF:
            victim = self._chance.choice(sorted({name for _, names in self._readers.values() for name in names}))
            self._deployment.processes.kill(victim)
            lost.append(f"{victim} killed as well")
        self._start_broker(began)
        return f"the ends of {', '.join(lost) or 'nothing'}"

    def group_back(self) -> str:
        """Set a group back, as an administrator does who wants to read something again."""
        return self._set_group(lambda at, first, end: self._chance.randint(first, at))

    def group_forward(self) -> str:
        """Set a group forward, at times beyond the end of the log."""
        return self._set_group(lambda at, first, end: self._chance.randint(at, end + 500))

    def group_deleted(self) -> str:
        """Delete a group."""
        group, _ = self._empty_group()
        ask_coordinator(self._admin.delete_consumer_groups, group, within=_ANSWER)
        return group

    def topic_again(self) -> str:
        """Delete a topic, and make it again."""
        topic = self._topic()
        name = self._name(topic)
        for future in self._admin.delete_topics([name], request_timeout=_ANSWER).values():
            future.result()
        self._await(lambda: name not in self._admin.list_topics(timeout=_ANSWER).topics, f"{topic} is gone")
        self._deployment.create_topics()
        return topic

    def partition_added(self) -> str:
        """Give the heap notifications a partition more."""
        name = self._name("ingest.heaps")
        number = len(self._admin.list_topics(name, timeout=_ANSWER).topics[name].partitions) + 1
        if number > _MOST_PARTITIONS:
            return f"none: there are {number - 1} already"
        for future in self._admin.create_partitions([NewPartitions(name, number)], request_timeout=_ANSWER).values():
            future.result()
        return f"ingest.heaps has {number}"

    def disk_full(self) -> str:
        """Let the broker write nothing more, until it ends itself; then there is room again."""
        began, broker = self._deployment.clock.monotonic(), self._deployment.broker
        # A quota instead of a full disk: it needs no rights to mount, and the broker gets an I/O error alike.
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (0, 0))
        self._await(lambda: not broker.is_up, "the broker ends, as it cannot write")
        self._start_broker(began)
        return "the broker ended itself"

    def future_snapshot(self) -> str:
        """Let a device server begin with a snapshot whose offsets nobody has written yet."""
        name = self._name("snapshots")
        newest = self._newest(name)
        key = self._chance.choice(sorted(newest))
        self._deployment.processes.kill(msgspec.json.decode(newest[key])["instance"].removeprefix("SdpFacade-"))
        snapshot = msgspec.json.decode(self._newest(name)[key])
        for field in ("offsets", "rebuild_from"):
            snapshot[field] = {one: at + _FUTURE for one, at in snapshot[field].items()}
        producer = Producer({"bootstrap.servers": self._deployment.settings.bootstrap, "log_level": 0})
        producer.produce(name, msgspec.json.encode(snapshot), key)
        producer.flush(_ANSWER)
        return key.decode()

    def records_deleted(self) -> str:
        """Delete records, half of the time while those that should read them do not run."""
        topic = self._topic()
        stopped = self._chance.random() < 0.5
        if stopped:
            for process in self._readers[topic][1]:
                self._deployment.processes.kill(process)
            self._deployment.clock.sleep(2.0)
        ends = self._ends(topic)
        partition = self._chance.choice(sorted(ends))
        first, end = ends[partition]
        before = self._chance.randint(first, end)
        place = TopicPartition(self._name(topic), partition, before)
        for future in self._admin.delete_records([place], request_timeout=_ANSWER).values():
            future.result()
        return f"{topic}, partition {partition}, before offset {before}{' of ' * stopped}{end if stopped else ''}"

    def abort_hanging(self) -> list[str]:
        """Abort transactions that never end, with Kafka's own tool, as the response of `transactionHanging` says.

        A coordinator that lost the end of its log knows nothing of them, so whoever reads committed records waits.

        Returns
        -------
        list of str
            Topic and partition of each.
        """
        found = [line.split() for line in self._tool("find-hanging", "--broker-id", "1", *_ANY_AGE)]
        places = [words for words in found if len(words) >= _COLUMNS and words[1].isdigit()]
        for topic, partition, _, _, _, start, *_ in places:
            self._tool("abort", "--topic", topic, "--partition", partition, "--start-offset", start)
        return [f"{topic}-{partition}" for topic, partition, *_ in places]

    def _tool(self, *arguments: str) -> list[str]:
        """Run Kafka's tool for transactions; return its lines."""
        progress, bootstrap = self._deployment.progress, self._deployment.settings.bootstrap
        argv = [find_java(), "-cp", f"{libraries(progress.step)}/*", "org.apache.kafka.tools.TransactionsCommand"]
        argv += ["--bootstrap-server", bootstrap, *arguments]
        try:
            return tools.run(argv, what=f"kafka-transactions {arguments[0]}").splitlines()
        except InfraError as error:  # judged by what comes of it
            progress.step(f"    {error}")
            return []

    def _client(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._deployment.settings.bootstrap, "log_level": 0})

    def _set_group(self, choose: Callable[[int, int, int], int]) -> str:
        group, topic = self._empty_group()
        about = ConsumerGroupTopicPartitions(group)
        found = ask_coordinator(self._admin.list_consumer_group_offsets, group, within=_ANSWER, about=about)
        name, ends = self._name(topic), self._ends(topic)
        known = [one for one in found.topic_partitions if one.topic == name and one.partition in ends]
        if not known:
            return f"{group}: it has committed nothing"
        one = self._chance.choice(known)
        first, end = ends[one.partition]
        to = choose(max(one.offset, first), first, max(end, one.offset, first))
        about = ConsumerGroupTopicPartitions(group, [TopicPartition(name, one.partition, to)])
        ask_coordinator(self._admin.alter_consumer_group_offsets, group, within=_ANSWER, about=about)
        return f"{group}, {topic}, partition {one.partition}: {one.offset} to {to}"

    def _empty_group(self) -> tuple[str, str]:
        """Stop the members of a group and wait until it knows; return its name on the brokers, and a topic of it."""
        topic = self._chance.choice([topic for topic, (group, _) in self._readers.items() if group])
        group, processes = self._readers[topic]
        name = self._name(group)
        for process in processes:
            self._deployment.processes.kill(process)

        def is_empty() -> bool:
            return not ask_coordinator(self._admin.describe_consumer_groups, name, within=_ANSWER).members

        self._await(is_empty, f"group {name} is empty")
        return name, topic

    def _newest(self, name: str) -> dict[bytes, bytes]:
        """Return the newest values of a compacted topic by key."""
        settings = self._deployment.settings
        return {key: value for key, value in read_log(settings.bootstrap, name, self._deployment.clock) if value}

    def _cut(self) -> list[tuple[str, int]]:
        """Take bytes off the ends of partitions; return which, and how many."""
        found = []
        prefix = self._deployment.settings.prefix
        for folder in sorted(self._data.iterdir()):
            ours = folder.name.startswith((prefix, "__consumer_offsets-", "__transaction_state-"))
            logs = sorted(folder.glob("*.log")) if ours and not folder.name.endswith("-delete") else []
            size = logs[-1].stat().st_size if logs else 0
            if size and self._chance.random() < _CUT_OF:
                cut = self._chance.randint(1, min(size, _MOST_CUT))
                with logs[-1].open("r+b") as log:
                    log.truncate(size - cut)
                found.append((folder.name.removeprefix(prefix), cut))
        return found

    def _start_broker(self, began: float) -> None:
        for _ in range(_STARTS):
            with suppress(
                InfraError
            ):  # on a busy machine what was cut may take long to recover; it goes on where it was
                self._deployment.broker.start()
                break
        else:
            raise InfraError(f"the broker did not start in {_STARTS} attempts; see its log")
        self.broker_away = max(self.broker_away, self._deployment.clock.monotonic() - began)

    def _ends(self, topic: str) -> dict[int, tuple[int, int]]:
        name = self._name(topic)
        partitions = self._admin.list_topics(name, timeout=_ANSWER).topics[name].partitions
        places = [TopicPartition(name, one) for one in partitions]
        firsts, ends = (
            self._admin.list_offsets(dict.fromkeys(places, which), request_timeout=_ANSWER)
            for which in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return {one.partition: (firsts[one].result().offset, ends[one].result().offset) for one in places}

    def _topic(self) -> str:
        return self._chance.choice(sorted(self._readers))

    def _name(self, name: str) -> str:
        return self._deployment.settings.prefix + name

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        self._deployment.progress.demand(condition, _WITHIN, what)
