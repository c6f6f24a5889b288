"""The reference pages: complete, with links that lead somewhere, and text that Markdown does not take for markup."""

import json
import re

import jsonschema
import pytest

from facade.exports.markdown import anchor, escaped, row, tidy
from facade.exports.reference import export
from facade.icd.fields import walk
from facade.icd.load import load
from facade.icd.words import families

ICD = load()
PAGES = {path.rsplit("/", 1)[1]: text for path, text in export(ICD).items()}
HEADERS = {"batch": "batch", "metric": "metric", "table-segment": "segment"}
KEYS = {
    "alert": "{condition}",
    "batch": "{constants[node]}",
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


def home(name: str, entry: str) -> str:
    for said in re.findall(r"^The same as on .*?(?=\n\n|\Z)", PAGES[f"{name}.md"], re.MULTILINE | re.DOTALL):
        if same := re.search(rf"\[`{re.escape(entry)}`\]\((\w+\.md)#{anchor(entry)}\)", said):
            return PAGES[same[1]]
    return PAGES[f"{name}.md"]


@pytest.mark.parametrize("name", sorted(ICD.classes))
def test_a_device_page_has_all_that_the_class_has(name: str) -> None:
    text, device_class = PAGES[f"{name}.md"], ICD.classes[name]
    for one in families(device_class.attributes):
        if one.name in ICD.conditions:
            assert f"[`{one.name}`](alerts.md#{anchor(one.name)})" in text
        elif one.first.account is None:
            about = flat(section(home(name, one.name), f"`{one.name}`"))
            assert flat(escaped(one.description)) in about
            assert f"label: {escaped(one.label)}" in about
    for command in device_class.commands:
        about = flat(section(text, f"`{command.name}`"))
        assert flat(escaped(command.description)) in about
        assert f"Allowed in State: {', '.join(command.state)}" in about
        assert all(target in about for target in command.targets)
        assert command.argument is None or all(version in about for version in ICD.arguments[command.argument])
    for query in device_class.queries:
        about = flat(section(home(name, query.name), f"`{query.name}`"))
        assert flat(escaped(query.result_description)) in about
        assert query.result in about
        assert not query.max_bytes or f"at most {query.max_bytes:,} B" in about
    headings = set(re.findall(r"^### `([^{].*)`$", text, re.MULTILINE))
    known = {
        one.name
        for one in (*families(device_class.attributes), *device_class.commands, *device_class.queries)
        if home(name, one.name) == text and one.name not in ICD.conditions
    }
    accounts = {one.name for one in device_class.attributes if one.account is not None}
    assert headings == known - accounts


def test_each_figure_of_each_account_can_be_found_on_the_page_of_the_bus() -> None:
    text = PAGES["SdpBus.md"]
    rows = re.findall(r"^\| `(\w+)\{\}` \| \[`(\S+)`\]\(\S+\) \| (.+) \|$", text, re.MULTILINE)
    found = {}
    for figure in re.findall(r"^### `\{\}(\w+)`$", text, re.MULTILINE):
        about = flat(section(text, f"`{{}}{figure}`"))
        streams = re.search(r"- Streams: (.*?)(?: - |$)", about)
        limited = re.search(r"- The limits apply to (.*?)(?: - |$)", about)
        for prefix, stream, records in rows:
            if streams is None or f"`{stream}`" in streams[1]:
                limits = "- Limits: " in about and (limited is None or f"`{stream}`" in limited[1])
                found[prefix + figure] = about, stream, records, limits
    accounts = {one.name: one for one in ICD.classes["SdpBus"].attributes if one.account is not None}
    assert accounts.keys() == found.keys()
    for name, one in accounts.items():
        about, stream, records, limits = found[name]
        text = escaped(one.description).removesuffix(f"; stream {stream} ({records}).")
        what, _, differs = text.partition(": ")
        assert text in about or re.search(rf"{re.escape(what)}\. .*`{stream}`[^:]*: {re.escape(differs)}", about)
        assert limits == (one.limits is not None)
        assert f"label: {one.label.partition(': ')[2]}" in about


def test_messages_have_all_their_fields_and_refuse_others_and_internal_ones_are_described() -> None:
    internal = re.findall(r"^### `(.+)`$", parts("messages.md")["Internal messages"], re.MULTILINE)
    for name, schema in ICD.messages.items():
        about = flat(section(PAGES["messages.md"], f"`{name}`"))
        assert schema["additionalProperties"] is False
        assert flat(escaped(schema["description"])) in about
        for path, field, named in walk(schema):
            if "const" in field or name in internal:
                continue
            description = flat(escaped(str(field.get("description", ""))))
            assert description in about, path
            assert not named or f"`{path.rsplit('.', 1)[-1]}` (" in about


def parts(name: str) -> dict[str, str]:
    return {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGES[name], flags=re.MULTILINE)[1:]}


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


def test_all_topics_conditions_and_labels_are_there() -> None:
    for name, topic in ICD.topics.items():
        assert flat(escaped(topic.description)) in flat(section(PAGES["topics.md"], f"`{name}`"))
    for name, condition in ICD.conditions.items():
        about = flat(section(PAGES["alerts.md"], f"`{name}`"))
        for label, text in (("Check", condition.check), ("Response", condition.response), ("Ends", condition.ends)):
            assert f"{label}: {escaped(text)}" in about
        assert f"Causes: {escaped(' '.join(condition.causes))}" in about
        assert f"Priority: {condition.priority}" in about
    for name, labels in ICD.enums.items():
        rows = re.findall(r"^\| (\d+) \| (\w+) \|$", section(PAGES["enums.md"], name), re.MULTILINE)
        assert [(int(value), label) for value, label in rows] == list(enumerate(labels))


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
