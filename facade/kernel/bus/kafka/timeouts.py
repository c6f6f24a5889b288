"""All time-outs for brokers, in one table, in seconds unless they say otherwise.

A command waits long, as a person would only start it again. A running process waits shortly: it has other work, and
repeats the request.
"""

ANSWER_MS = 8000
"""A request without an answer for this time has failed [ms]. The client's default is a minute."""
LEADERS_MS = 1000
"""Time between two requests for the leaders of partitions [ms], of clients on which commands depend. A broker that
hangs keeps its connections. Until the client gives them up, after twice `ANSWER_MS`, it looks for no new leader: its
default is five minutes. Commands stopped for 18 s instead of 10 s."""
SESSION = 6.0
"""The group gives the partitions of a member without heartbeats to others."""

# Questions
COMMAND = 10.0
"""Answer to a command: topics, settings, groups, offsets."""
NEW_TOPICS = 60.0
"""The leaders of new topics answer. A busy broker takes some seconds to lead dozens of partitions."""
PROCESS = 5.0
"""Answer to a running process: topic ids and offsets, opening a reader, a commit of a group member."""
END_OFFSETS = 0.5
"""Answer to a worker that asks for the ends of its partitions between two batches. Without one it waits twice as long
the next time: brokers whose answers always took longer would let no window of a quiet stream close."""
END_OFFSETS_AT_MOST = 2.0
"""The longest of these waits. Other partitions of the worker wait as well, and their values are stale after 3 s."""
COORDINATOR = 3600.0
"""A request to a group's coordinator: the client's upper limit; see `facade.kernel.bus.kafka.admin`."""
TOPIC_IDS_EACH = 2.0
"""Time between two requests for topic ids: one small request for all topics of a process."""
REPLICAS_EACH = 10.0
"""Time between two requests for the replicas of all topics: one request of one process of a deployment."""

# Reading up to an end
READ_ALL = 10.0
"""A compacted topic, from its beginning."""
STANDSTILL = 20.0
"""No record comes, and the end is not reached; longer than the longest open transaction of ours."""
NOT_FETCHED = 30.0
"""The client does not know the end of a partition: it fetches nothing of it, and the partition is assigned again."""

# Transactions of a worker
STEP = 4.0
"""One step of a transaction. A worker that is asked to stop waits no longer."""
TRANSACTION = 5.0
"""The broker aborts a longer transaction."""

HANGING = 15.0
"""A wait for the end of a transaction that takes longer is for a transaction that has ended: its end is written
again."""

# Transactions of a command
COMMAND_STEP = 10.0
"""One step of a transaction."""
COMMAND_TRANSACTION = 20.0
"""The broker aborts a longer transaction."""

# Ends
LEAVE = 1.0
"""A member leaves its group, and the group confirms it."""
LAST_REPORTS = 1.0
"""A dead producer reports the results of its records."""
