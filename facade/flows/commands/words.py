"""What the AsyncAPI document says of commands, acknowledgements, states and heartbeats."""

from facade.manifest import Part, Words

WORDS = Words(
    introduction=(
        "You execute commands: read `commands`, `command-acks` and `state`; write `command-acks`, `state` and "
        "`heartbeats`.",
    ),
    parts=(
        Part(
            "send",
            "state",
            "Report each change of a device's state, and the state after each command.",
            who=("controller",),
        ),
        Part(
            "receive",
            "state",
            "Know what was last reported: after a restart it is the only memory of it.",
            who=("controller",),
        ),
        Part("send", "state", "Keep what operators set on devices (adminMode)."),
        Part("receive", "state", "Show the state of the devices."),
        Part("send", "commands", "Hand a command of TM over.", reply="command-acks"),
        Part(
            "send",
            "commands",
            "Give an order to another controller while you execute a command.",
            who=("controller",),
            reply="command-acks",
        ),
        Part(
            "receive",
            "commands",
            "Execute the commands of your devices; leave those of other devices alone. Commits are made by hand, "
            "after the acknowledgement. The group is your own to name, with the deployment's prefix before it.",
            who=("controller",),
            reply="command-acks",
        ),
        Part("receive", "commands", "Answer GetCommand and GetCommandHistory, also after a restart."),
        Part(
            "send",
            "command-acks",
            "Say what becomes of each command: ACCEPTED first, the outcome last.",
            who=("controller",),
        ),
        Part(
            "receive",
            "command-acks",
            "Know what has been executed already; read to its end at the start.",
            who=("controller",),
        ),
        Part("send", "command-acks", "Give a command up: TIMED_OUT, UNDELIVERED."),
        Part("receive", "command-acks", "Show how each command goes and ends."),
        Part("send", "command-refusals", "Keep the commands that devices refused."),
        Part("receive", "command-refusals", "Show the refusals: the newest in an attribute, all in a list."),
        Part("send", "heartbeats", "Say each second that you live.", who=("controller",)),
        Part("send", "heartbeats", "Say each second that you live, and what your devices complain of."),
        Part("receive", "heartbeats", "See who lives, and other servers of the same name."),
    ),
    correlated=("command", "command-ack"),
    traced=("command", "command-ack", "state"),
    commands="command",
    examples={
        "command": {
            "schema": "command/1",
            "id": "1795276800.000000_117520013_EndScan",
            "device": "mid-sdp/subarray/01",
            "command": "EndScan",
            "argument": None,
            "transaction_id": "txn-local-20261121-000000017",
            "issued": 1795276800000000,
            "not_after": 1795276805000000,
            "deadline": 1795276810000000,
            "ceiling": 1795276860000000,
            "repeatable": True,
            "origin": "control/1",
        },
        "command-ack": {
            "schema": "command-ack/1",
            "id": "1795276800.000000_117520013_EndScan",
            "device": "mid-sdp/subarray/01",
            "command": "EndScan",
            "status": "COMPLETED",
            "time": 1795276801000000,
            "origin": "my-subarrays",
        },
        "state": {
            "schema": "state/1",
            "device": "mid-sdp/subarray/01",
            "attribute": "obsState",
            "value": "READY",
            "time": 1795276801000000,
            "origin": "my-subarrays",
            "command": "1795276800.000000_117520013_EndScan",
        },
        "heartbeat": {
            "schema": "heartbeat/1",
            "component": "my-subarrays",
            "incarnation": "start-20261121-1",
            "devices": ["mid-sdp/subarray/01", "mid-sdp/subarray/02"],
            "time": 1795276801000000,
            "interval": 1.0,
            "role": "controller",
        },
    },
)
