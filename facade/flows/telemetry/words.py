"""What the AsyncAPI document says of heaps and of all aggregates; of other streams it says what it derives."""

from facade.manifest import Part, Words

WORDS = Words(
    introduction=("You have an ingest node: write `ingest.heaps`.",),
    parts=(
        Part("send", "ingest.heaps", "Tell what became of each heap."),
        Part("receive", "ingest.heaps", "Take heap notifications to reduce them."),
        Part("send", "ingest.summary", "Write the partial aggregates of a transaction."),
        Part("receive", "ingest.summary", "Merge the partial aggregates (read committed)."),
        Part("send", "telemetry.summary", "Write the partial aggregates of a transaction."),
        Part("receive", "telemetry.summary", "Merge the partial aggregates of what you show (read committed)."),
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
        "batch": {
            "schema": "batch/1",
            "message": "heap/1",
            "rows": 100,
            "constants": {"node": 7, "scan_id": 17, "channel_count": 128},
            "bases": {"seq": 1000000, "time": 1795276800000000},
            "producer": "ingest-7",
            "sequence": 0,
        },
        "receive-buffer": {
            "schema": "receive-buffer/1",
            "node": 7,
            "time": 1795276800000000,
            "fill": 0.42,
            "dropped": 0,
        },
        "flagging": {
            "schema": "flagging/1",
            "subarray": 1,
            "scan_id": 17,
            "seq": 0,
            "time": 1795276800000000,
            "flagged": 1250000,
            "kept": 98750000,
        },
        "storage": {
            "schema": "storage/1",
            "time": 1795276800000000,
            "used": 2.0e16,
            "free": 1.5e16,
            "products": 214,
        },
    },
    keys={"heap": "7", "batch": "7", "receive-buffer": "7", "flagging": "1"},
)
