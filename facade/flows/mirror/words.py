"""What the AsyncAPI document says of the telescope model."""

from typing import Any

from facade.manifest import Part, Words


def _flatbuffer() -> dict[str, Any]:
    return {
        "name": "StreamingData",
        "title": "Value or alarm as a flatbuffer",
        "summary": "f144 (a number or a spectrum) or al00 (an alarm), as bytes 4 to 7 say. The schemas are ESS's.",
        "description": "The name of the source is the record's key, the time is that of the value [Unix ns].",
        "contentType": "application/octet-stream",
        "payload": {"type": "string", "format": "binary"},
    }


WORDS = Words(
    introduction=(
        "You need to know the state of the telescope: read `telescope.model`; what is on it is chosen by the rules on "
        "`telescope.mirror`.",
    ),
    parts=(
        Part("send", "telescope.model", "Tell each value of each mirrored attribute, and whether its device answers."),
        Part("receive", "telescope.model", "Number on after a restart.", who=("mirror",)),
        Part("receive", "telescope.model", "Know the state of the telescope."),
        Part("send", "telescope.streaming", "Tell each value and alarm in the forms of ESS, if the settings say so."),
        Part("receive", "telescope.streaming", "Know values as programs of ESS read them."),
        Part("send", "telescope.mirror", "Choose what is mirrored."),
        Part("receive", "telescope.mirror", "Mirror what the rules choose.", who=("mirror",)),
        Part("receive", "telescope.mirror", "List the rules."),
    ),
    messages={"telescope.streaming": _flatbuffer},
    examples={
        "telescope-attribute": {
            "schema": "telescope-attribute/1",
            "name": "mid-dish/dish-manager/ska001/achievedpointing",
            "number": 1724,
            "time": 1795282430808302,
            "value": [1795282467.808302, 181.2245, 45.0012],
            "type": "DevDouble",
            "quality": "VALID",
            "connection": "CONNECTED",
            "by": "EVENT",
        },
        "mirror-rule": {
            "schema": "mirror-rule/1",
            "rule": "pointing",
            "patterns": ["mid-dish/dish-manager/{receptor}/achievedPointing"],
            "time": 1795282400000000,
            "origin": "operator",
        },
    },
    keys={"telescope-attribute": "mid-dish/dish-manager/ska001/achievedpointing", "mirror-rule": "pointing"},
)
