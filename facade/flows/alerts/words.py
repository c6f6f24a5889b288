"""What the AsyncAPI document says of alerts."""

import json
from typing import Any

from facade.manifest import Part, Words
from facade.resources import resource


def _packet() -> dict[str, Any]:
    schema = json.loads(resource("schemas", "messages", "alert-packet.avsc").read_text(encoding="utf-8"))
    return {
        "name": "AlertPacket",
        "title": "Alert packet",
        "summary": "In Avro's single-object encoding: C3 01, the CRC-64-AVRO fingerprint of the schema, one datum.",
        "description": schema["doc"],
        "contentType": "application/vnd.apache.avro",
        "x-file": "messages/alert-packet.avsc",
        "payload": {"schemaFormat": "application/vnd.apache.avro+json;version=1.9.0", "schema": schema},
    }


WORDS = Words(
    introduction=(
        "You have something to tell an operator: write `alerts`, or `alert-packets` if images belong to it.",
    ),
    parts=(
        Part("send", "alerts", "Raise and clear alerts.", who=("alert-source",), messages=("alert",)),
        Part("send", "alerts", "Raise the alert of a packet.", who=("alerts-intake",), messages=("alert",)),
        Part(
            "send", "alerts", "Write down what operators do about alerts.", who=("alerts",), messages=("alert-action",)
        ),
        Part("send", "alerts", "Raise and clear the facade's own alerts.", messages=("alert",)),
        Part("receive", "alerts", "Send each alert as an event, and keep the state of the alarms."),
        Part("send", "alert-packets", "Raise and clear alerts that have attachments."),
        Part("receive", "alert-packets", "Take packets apart.", who=("alerts-intake",)),
        Part("receive", "alert-packets", "Fetch the attachments of an alert."),
        Part("send", "alert-state", "Keep the state of each alarm for the next start."),
        Part("receive", "alert-state", "Know all alarms after a restart.", who=("alerts",)),
        Part("receive", "alert-state", "Know after a restart which alerts of your own are raised."),
    ),
    messages={"alert-packets": _packet},
    examples={
        "alert": {
            "schema": "alert/1",
            "condition": "receiveOverrun",
            "source": "receive/0007",
            "severity": "ALARM",
            "state": "ACTIVE",
            "text": "expected no drops, got 312 heaps/s",
            "raised_at": 1795276800000000,
            "sequence": 41,
            "values": {"dropped": 312.0},
        },
    },
    keys={"alert": "receiveOverrun"},
)
