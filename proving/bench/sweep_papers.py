"""What the papers say, in their own figures; see ``docs/explanation/kafka-figures.md`` for their names.

Keys are what tells the rows of a table apart.
"""

MEMO_TABLE_2 = {
    256: ("80,448", "0.411", "206"),
    1_000: ("47,277", "0.744", "1,260"),
    1_000_000: ("260", "113", "4,940"),
    10_000_000: ("31", "2,680", "5,970"),
    100_000_000: ("2.35", "3,080", "4,600"),
}
"""SDP memo 052, Table 2: messages/s, p99 and most of the time for a message [ms], by size [bytes]; 20 producers, of
100 MB 10; 300 s each, three brokers, two replicas."""
MEMO_THREE = (2_020_000, 2_600_000)
"""SDP memo 052, 14.2: messages/s of 100 B from three producers and to three consumers, on three machines each."""
MEMO_PERF_TEST = {1_000: ("205,000", "23 ms"), 1_000_000: ("220", "2.8 s"), 10_000_000: ("3.4", "17 s")}
"""SDP memo 052, 14.4.3: messages/s and mean latency, by size [bytes]."""
MEMO_TABLE_3 = {
    (1_000, 1): (83.39, 80.03),
    (10_000, 1): (9.322, 9.262),
    (100_000, 1): (0.907, 1.712),
    (100_000, 20): (1.328, 109.399),
    (1_000_000, 1): (0.728, 1.397),
    (1_000_000, 20): (0.896, 160.160),
    (10_000_000, 1): (1.127, 1.057),
}
"""SDP memo 052, Table 3: mean time of the producer and of the consumer for 100 MB [s], by segment and partitions."""
BROKERS_SIZE = {
    8: (83_751, 66_109, 34_398, 36_916),
    16: (91_222, 78_498, 32_953, 36_418),
    32: (63_615, 79_900, 28_774, 32_488),
    64: (94_708, 80_500, 36_023, 38_342),
    128: (97_070, 74_859, 31_658, 36_189),
}
"""Paper 001, Kafka with ZooKeeper: messages/s in, out, and both at once, by size [bytes]."""
BROKERS_BATCH = {
    1: (19_396, 11_027, 11_847, 8_177),
    20: (63_615, 79_900, 28_774, 32_488),
    50: (256_418, 106_197, 156_566, 84_577),
}
"""The same for 32 B, by the messages in a batch."""
QUEUES = {
    4: (2_010_000, 4_255_000),
    32: (1_327_000, 1_611_000),
    200: (470_800, 463_500),
    1_024: (104_500, 100_900),
    10_240: (11_440, 10_010),
}
"""Paper 004, Kafka 0.10 on one machine: messages/s in and out, by size [bytes]."""
VISITS = {
    (1, 2, 1): (33.1, 0.16),
    (10, 2, 1): (7.46, 11.0),
    (100, 2, 1): (5.9, 14.9),
    (10, 4, 1): (6.26, 17.91),
    (10, 6, 1): (7.15, 21.14),
    (10, 11, 1): (8.82, 2068.0),
    (100, 11, 10): (3.75, 10.8),
}
"""DMTN-028 (paper 002): time to produce 10,000 alerts with stamps, and time from then on until they are consumed [s],
by producers, groups and partitions; the paper's producers also encode Avro, about 300 alerts/s each."""
