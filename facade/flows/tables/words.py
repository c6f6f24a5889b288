"""What the AsyncAPI document says of calibration tables."""

from facade.manifest import Part, Words

WORDS = Words(
    introduction=("You make calibration tables: write `calibration`; what became of them is on `tables`.",),
    parts=(
        Part("send", "calibration", "Send a table in segments, or a reference to it."),
        Part("receive", "calibration", "Put tables together.", who=("tables-assemble",)),
        Part("receive", "calibration", "Give the bytes of a table that is announced as complete."),
        Part("send", "tables", "Announce what is complete, under way or has failed."),
        Part("receive", "tables", "Know after a restart what has been announced.", who=("tables-assemble",)),
        Part("receive", "tables", "Learn what became of your tables.", who=("calibration-pipeline",)),
        Part("receive", "tables", "Show the newest table of each product."),
    ),
    headers={"calibration": ("segment", "table-segment")},
    examples={
        "table-segment": {
            "schema": "table-segment/1",
            "table": "cal-7",
            "product": "subarray/01/gains",
            "kind": "gains",
            "content_type": "application/vnd.apache.arrow.stream",
            "index": 0,
            "count": 20,
            "start": 0,
            "size": 19982680,
            "sha256": "78f8" * 16,
            "sent_at": 1795282430808302,
        },
        "table": {
            "schema": "table/1",
            "table": "cal-7",
            "product": "subarray/01/gains",
            "kind": "gains",
            "content_type": "application/vnd.apache.arrow.stream",
            "state": "COMPLETE",
            "size": 19982680,
            "received": 19982680,
            "sha256": "78f8" * 16,
            "sent_at": 1795282430808302,
            "time": 1795282431903118,
            "partition": 2,
            "first_offset": 4100,
            "last_offset": 4119,
        },
    },
    keys={"table-segment": "subarray/01/gains", "table": "subarray/01/gains"},
)
