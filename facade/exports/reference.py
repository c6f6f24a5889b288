"""The reference pages: devices, topics, messages, alerts and enumerations, as the ICD has them."""

from collections.abc import Iterator, Mapping

from facade.exports.markdown import code, escaped, items, link, page, paragraph, table
from facade.exports.reference_bus import messages_page, topics_page
from facade.exports.reference_devices import device_page, entry, executors_page
from facade.icd.model import Condition, Icd
from facade.icd.words import duration_in_words, families

_FOLDER = "docs/reference"
_ALERTS = (
    "This page is the runbook of the alarms: each condition has its meaning, its causes, what to check, the response, "
    "and how the alarm ends (the rationalization of IEC 62682). Any number of sources may raise a condition, and each "
    "of them has its own alarm. The attribute of {classes} shows the state of the most urgent one. `otherConditions` "
    "and `unknownConditions` show conditions that are not listed here."
)
_ALERT_TERMS = (
    "An alarm is raised once its condition has lasted for the *on delay*, and cleared once it has gone for the *off "
    "delay*. A *latching* alarm stays until it is reset. *Re-alarm*: an acknowledged alarm must be acknowledged again "
    "if there is news of it after this time, or at once when a value has grown by this factor. An alarm is suppressed "
    "while another condition explains it."
)
_ENUMS = "Labels of the Tango enumerations with their values. Enumerations that SKA defines have SKA's values."
_INDEX = (
    "These pages describe the Tango devices of SDP, and the topics and messages of its bus. They are derived from the "
    "interface control document (ICD), version {version}. The ICD is data: `schemas/icd/*.toml`, "
    "`schemas/messages/*.schema.json` and `schemas/commands/*.schema.json`."
)
_READING = (
    "The first line of an attribute has its Tango type, its unit in brackets, and its label.",
    "Source: the records from which the value is made, and their topic. *Window* means the newest closed window of "
    "data time. *Total* means the count since the facade first read the topic. Values that controllers "
    "report come from the topic `state`. An attribute without a source comes from the device server itself.",
    "Events and silence: the values at the beginning of a page apply, unless an attribute says otherwise.",
    "Attributes are pushed as change and archive events from code, and as alarm events when the quality changes; none "
    "is polled. Of large arrays a data-ready event says that they can be read.",
    "Events: the shortest and the longest time between two events while the stream is alive, and the deadbands. A "
    "change within the deadband causes no event. A change of quality always causes one.",
    "Invalid: after this time without data the value has the quality ATTR_INVALID. A value that is never stale stays "
    "valid in silence.",
    "Limits: at a limit the quality is ATTR_WARNING or ATTR_ALARM.",
)
_OTHERS = (
    ("Topics", "topics.md", "keys, partitions, retention, and the rights of each role"),
    ("Messages", "messages.md", "the fields of each message"),
    ("Executors", "executors.md", "the executors that controllers give orders to, with their commands"),
    ("Alerts", "alerts.md", "the runbook: causes, checks and the response for each alarm condition"),
    ("Enumerations", "enums.md", "labels and values"),
)


def export(icd: Icd) -> Mapping[str, str]:
    """Return all reference pages; see `facade.exports.files`."""
    pages = {
        "index.md": _index(icd),
        "topics.md": topics_page(icd),
        "messages.md": messages_page(icd),
        "executors.md": executors_page(icd),
        "alerts.md": _alerts(icd),
        "enums.md": _enums(icd),
        **{f"{name}.md": device_page(icd, device_class) for name, device_class in icd.classes.items()},
    }
    return {f"{_FOLDER}/{name}": content for name, content in pages.items()}


def _index(icd: Icd) -> str:
    classes = (
        f"{link(name, f'{name}.md')}: {escaped(_first_sentence(device_class.description))}"
        for name, device_class in icd.classes.items()
    )
    others = (f"{link(title, name)}: {what}" for title, name, what in _OTHERS)
    text = paragraph(_INDEX.format(version=icd.version))
    return page(
        "Reference",
        text,
        "## Devices",
        items(classes),
        "The pages of the devices use these terms:",
        items(_READING),
        "## Topics, messages and alarms",
        items(others),
    )


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].removesuffix(".") + "."


def _alerts(icd: Icd) -> str:
    blocks = []
    for name, condition in icd.conditions.items():
        blocks += [f"## {code(name)}", paragraph(f"{escaped(condition.label)}. {escaped(condition.description)}")]
        blocks.append(items(_condition_facts(condition)))
    states = link("AlarmState", "enums.md", "AlarmState")
    more = f"The states are those of {states}; the message is {link('alert', 'messages.md', 'alert')}."
    classes = " and ".join(link(code(name), f"{name}.md") for name, one in icd.classes.items() if one.conditions)
    text = paragraph(f"{_ALERTS.format(classes=classes)} {more}")
    return page("Alerts", text, paragraph(_ALERT_TERMS), *blocks)


def _condition_facts(condition: Condition) -> Iterator[str]:
    yield f"Causes: {escaped(' '.join(condition.causes))}"
    yield f"Check: {escaped(condition.check)}"
    yield f"Response: {escaped(condition.response)}"
    yield f"Ends: {escaped(condition.ends)}"
    re_alarm = ", ".join(
        filter(
            None,
            (
                f"after {duration_in_words(condition.re_alarm)}" if condition.re_alarm else "",
                f"at {condition.re_alarm_growth:g} times a value" if condition.re_alarm_growth else "",
            ),
        )
    )
    facts = (
        f"Priority: {condition.priority}",
        "latching" if condition.latching else "",
        f"on delay: {duration_in_words(condition.on_delay)}" if condition.on_delay else "",
        f"off delay: {duration_in_words(condition.off_delay)}" if condition.off_delay else "",
        f"re-alarm: {re_alarm}" if re_alarm else "",
    )
    yield "; ".join(filter(None, facts))
    if condition.suppressed_by:
        others = ", ".join(link(code(one), "alerts.md", one) for one in condition.suppressed_by)
        yield f"Suppressed by: {others}"


def _enums(icd: Icd) -> str:
    blocks = []
    for name, labels in icd.enums.items():
        blocks += [f"## {name}", table(("value", "label"), ((str(at), label) for at, label in enumerate(labels)))]
        users = [
            entry(icd, device_class, one)
            for device_class in icd.classes.values()
            for one in families(device_class.attributes)
            if one.first.enum == name and one.name not in icd.conditions
        ]
        blocks.append(paragraph(f"Used by {', '.join(users)}.") if users else "")
    return page("Enumerations", paragraph(_ENUMS), *blocks)
