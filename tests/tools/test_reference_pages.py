"""The reference pages: complete, with links that lead somewhere, and text that Markdown does not take for markup."""

import json
import re

import jsonschema
import pytest

from facade.kernel.icd.load import load
from facade.tools.exports.markdown import escaped, row, tidy
from facade.tools.exports.reference import export

ICD = load()
PAGES = {path.rsplit("/", 1)[1]: text for path, text in export(ICD).items()}
HEADERS = {"batch": "batch", "batch-frame": "frame", "metric": "metric", "table-segment": "segment"}
KEYS = {
    "alert": "{condition}",
    "batch": "{constants[node]}",
    "batch-frame": "7",
    "command": "{device}",
    "command-ack": "{device}",
    "flagging": "{subarray}",
    "heap": "{node}",
    "heartbeat": "{component}",
    "metric": "subarray/{subarray:02d}/{metric}",
    "mirror-rule": "{rule}",
    "processing-block": "{pb_id}",
    "receive-buffer": "{node}",
    "reservation": "{id}",
    "state": "{device}/{attribute}",
    "storage": "",
    "table": "{product}",
    "table-segment": "{product}",
    "telescope-attribute": "{name}",
}
"""The key of a record of each message that programs of SDP write or read, by its fields."""


def section(text: str, heading: str) -> str:
    return re.split(r"^#+ ", text.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    "name", re.findall(r"^### `(.+)`$", PAGES["messages.md"].split("## Internal")[0], re.MULTILINE)
)
def test_a_message_of_a_team_has_a_record_to_copy_with_its_topic_and_key(name: str) -> None:
    about = section(PAGES["messages.md"], f"`{name}`")
    (block,) = re.findall(r"^```json\n(.*?)^```$", about, re.DOTALL | re.MULTILINE)
    example = json.loads(block)
    jsonschema.Draft202012Validator(ICD.messages[name]).validate(example)
    where = flat(about.partition("```")[0])
    ((topic, key),) = re.findall(r" on \[`(\S+)`\]\(\S+\) with(?:out a key| the key `(\S+)`):", where)
    assert name in (ICD.topics[topic].message, *ICD.topics[topic].also) or f"The header `{HEADERS[name]}` of" in where
    assert key == KEYS[name].format(**example)


def test_text_is_not_taken_for_markup() -> None:
    assert escaped("a*b [c] <d> & e_f") == "a\\*b \\[c\\] &lt;d> &amp; e_f"
    assert escaped("see `x|y<z` and *") == "see `x|y<z` and \\*"
    assert escaped("one ` alone") == "one \\` alone"
    assert [row("a", text) for text in ("x | y", "`x|y`")] == ["| a | x \\| y |", "| a | `x\\|y` |"]
    for start in ("-", "+", "#", ">", ">=", "12.", "3)"):
        wrapped = tidy(f"# T\n\n{'x' * 117} {start} and no entry").splitlines()[5]
        assert wrapped.replace("\\", "") == f"{start} and no entry"
        assert not re.match(r"[-+#] |>|\d+[.)] ", wrapped)
    for start in ("-1", "#4", "1.5", "x -"):
        assert tidy(f"# T\n\n{'x' * 117} {start} and so on").splitlines()[5] == f"{start} and so on"


def test_blank_lines_of_a_template_do_not_matter() -> None:
    text = "# T\n\n\none\ntwo\n- \n- a\n\n    - b\n  more\n\n```json\n{\n\n}\n```\n| x |\n\n| y |\n"
    _, note, *blocks = tidy(text).split("\n\n")
    assert note.startswith("<!-- Derived")
    assert "\n\n".join(blocks) == "one two\n\n- a\n    - b more\n\n```json\n{\n\n}\n```\n\n| x |\n| y |\n"
    assert tidy(f"# T\n    - {'x ' * 70}").splitlines()[5].startswith("      x")
