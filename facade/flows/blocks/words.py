"""What the AsyncAPI document says of processing blocks."""

from facade.manifest import Part, Words

WORDS = Words(
    introduction=("You execute processing blocks: write each change of their state to `processing-blocks`.",),
    parts=(
        Part(
            "send", "processing-blocks", "Tell the state of each processing block, and remove those that nobody needs."
        ),
        Part("receive", "processing-blocks", "Show the processing blocks of each subarray."),
    ),
    examples={
        "processing-block": {
            "schema": "processing-block/1",
            "pb_id": "pb-mvp01-20261123-00001",
            "eb_id": "eb-mvp01-20261123-00001",
            "subarray": 1,
            "kind": "batch",
            "state": "WAITING",
            "sequence": 2,
            "time": 1795282430808302,
            "script": "pointing-offset:0.8.0",
            "dependencies": ["pb-mvp01-20261123-00000"],
            "resources": {"nodes": 4},
            "source": "processing-controller",
        },
    },
    keys={"processing-block": "pb-mvp01-20261123-00001"},
)
