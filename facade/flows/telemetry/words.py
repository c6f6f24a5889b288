"""What the AsyncAPI document says of notifications and their aggregates."""

from facade.manifest import Part, Words

WORDS = Words(
    introduction=("You have an ingest node: write `ingest.heaps`.",),
    parts=(
        Part("send", "ingest.heaps", "Tell what became of each heap."),
        Part("receive", "ingest.heaps", "Take heap notifications to reduce them."),
        Part("send", "ingest.summary", "Write the partial aggregates of a transaction."),
        Part("receive", "ingest.summary", "Merge the partial aggregates (read committed)."),
    ),
    examples={
        "heap": {
            "schema": "heap/1",
            "node": 7,
            "scan_id": 17,
            "seq": 41,
            "time": 1795276800000000,
            "channel_start": 0,
            "channel_count": 128,
            "received": 4096,
            "lost": 0,
            "late": 0,
            "flagged_fraction": 0.02,
            "latency": 0.31,
        },
    },
)
