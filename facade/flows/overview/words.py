"""What the AsyncAPI document says of accounts, snapshots and dead letters."""

from typing import Any

from facade.manifest import Part, Words

_HEADERS = {
    "dl.topic": "Topic on which the record was.",
    "dl.partition": "Its partition there, as decimal text.",
    "dl.offset": "Its offset there, as decimal text.",
    "dl.timestamp_us": "Its Kafka timestamp as Unix time [us], as decimal text.",
    "dl.reason": "Why it could not be used: one word that can be counted, such as schema.",
    "dl.path": "JSON path of what is wrong in it; empty when the whole record is.",
    "dl.detail": "What was expected and what was found, for people.",
    "dl.by": "Who could not use it.",
}


def _dead_letter() -> dict[str, Any]:
    properties = {name: {"type": "string", "description": text} for name, text in _HEADERS.items()}
    return {
        "name": "DeadLetter",
        "title": "Dead letter",
        "description": "A record that could not be used: its key, its bytes and its own headers as they were, and why.",
        "contentType": "application/octet-stream",
        "headers": {
            "title": "DeadLetterHeaders",
            "type": "object",
            "required": list(properties),
            "properties": properties,
        },
        "payload": {"type": "string", "format": "binary", "description": "The bytes of the original record."},
    }


WORDS = Words(
    parts=(
        Part(
            "send",
            "accounts",
            "Account for the records that were taken, in the same transaction where there is one.",
        ),
        Part("receive", "accounts", "Show what became of the records of each stream (read committed)."),
        Part("send", "positions", "Note how far the worker is, in the same transaction as what came of the records."),
        Part("receive", "positions", "Go on where the last worker of the group ended, whatever the group itself says."),
        Part("send", "snapshots", "Write down what is merged, for the next start."),
        Part("receive", "snapshots", "Begin where the last life ended."),
        Part(
            "receive",
            "snapshots",
            "Begin where the last life ended, and show what became of the records that each device server reads.",
            who=("control",),
        ),
        Part("send", "dead-letters", "Set aside what cannot be used, and go on."),
        Part("receive", "dead-letters", "Look up what could not be used, and why."),
    ),
    messages={"dead-letters": _dead_letter},
)
