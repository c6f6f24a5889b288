"""Which fields of the ICD the kit looks at, and why it does not look at the others."""

from collections.abc import Iterator, Mapping
from typing import Any

from clients.conformance.attributes import ATTRIBUTE_CHECKS
from clients.conformance.case import Check
from clients.conformance.commands import COMMAND_CHECKS
from clients.conformance.conditions import CONDITION_CHECKS
from clients.conformance.deployment import CLASS_CHECKS, DEVICE_CHECKS, ICD_CHECKS
from clients.conformance.flows import flow_checks
from clients.conformance.queries import QUERY_CHECKS
from clients.conformance.reported import REPORTED_CHECKS
from clients.conformance.topics import topic_checks
from clients.conformance.values import VALUE_CHECKS
from facade.icd.model import Icd

_DERIVATION = "how a value is made of records; whether it is right only the account of the demo shows, record by record"
_IN_WORDS = "for people; neither Tango nor Kafka has a place for it"
_ROLE = "who may is for the broker's access rules to say; who did does not stand in a record"
_WINDOW = "a rule of the aggregate workers; the demo's account shows it"
_TEMPLATE = "has become attributes when the interface was read, which are compared one by one"
_DELAY = "shown by the tests of the alarms only: the test alert takes a condition without"

UNCHECKED: Mapping[str, str] = {
    "Attribute.source": _DERIVATION,
    "Attribute.account": _DERIVATION,
    "Attribute.initial": "shown only by a system on which nothing was ever reported",
    "Source.topic": _DERIVATION,
    "Source.rule": _DERIVATION,
    "Source.field": _DERIVATION,
    "Source.over": _DERIVATION,
    "Source.q": _DERIVATION,
    "Source.of": _DERIVATION,
    "AccountSource.stream": _DERIVATION,
    "AccountSource.figure": _DERIVATION,
    "Sampling.longest": "an event is due by then only if a value was held back, which cannot be seen from outside",
    "Sampling.absolute": "what a deadband holds back cannot be seen from outside",
    "Sampling.relative": "what a deadband holds back cannot be seen from outside",
    "Command.description": _IN_WORDS,
    "Query.description": _IN_WORDS,
    "DeviceClass.description": _IN_WORDS,
    "Topic.description": _IN_WORDS,
    "Topic.writers": _ROLE,
    "Topic.readers": _ROLE,
    "Icd.roles": _ROLE,
    "Role.description": _IN_WORDS,
    "Role.side": _IN_WORDS,
    "Topic.qos": "how flows are kept apart inside the facade; a topic does not show it",
    "Topic.window": "see its fields",
    "Topic.account": _TEMPLATE,
    "Account.about": _TEMPLATE,
    "Account.figures": _TEMPLATE,
    "Account.suppressed": _TEMPLATE,
    "Account.lag": _TEMPLATE,
    "DeviceClass.accounts": _TEMPLATE,
    "AccountFigure.label": _TEMPLATE,
    "AccountFigure.description": _TEMPLATE,
    "AccountFigure.format": _TEMPLATE,
    "AccountFigure.stale_after": _TEMPLATE,
    "AccountFigure.limits": _TEMPLATE,
    "Icd.units": "which there may be; each attribute's own is compared",
    "Condition.response": _IN_WORDS,
    "Condition.priority": _IN_WORDS,
    "Condition.on_delay": _DELAY,
    "Condition.off_delay": _DELAY,
    "Condition.re_alarm": _DELAY,
    "Condition.suppressed_by": _DELAY,
    "Window.length": _WINDOW,
    "Window.hold": _WINDOW,
    "Window.time": _WINDOW,
    "Window.group": _WINDOW,
    "Window.sequence": _WINDOW,
    "Window.epoch": _WINDOW,
    "Window.quantile_error": _WINDOW,
    "Window.summary": _WINDOW,
    "Window.groups": _WINDOW,
    "Window.most_groups": _WINDOW,
    "Window.all_expected": _WINDOW,
    "DeviceClass.state_source": _DERIVATION,
}
"""Fields of the ICD that no check looks at, and why."""


def all_checks(icd: Icd) -> Iterator[Check[Any]]:
    """Return every check that there is."""
    kinds: tuple[tuple[Check[Any], ...], ...] = (
        ICD_CHECKS,
        CLASS_CHECKS,
        DEVICE_CHECKS,
        ATTRIBUTE_CHECKS,
        VALUE_CHECKS,
        REPORTED_CHECKS,
        COMMAND_CHECKS,
        QUERY_CHECKS,
        CONDITION_CHECKS,
        *(flow.every for flow in flow_checks()),
    )
    for checks in kinds:
        yield from checks
    for topic in icd.topics.values():
        yield from topic_checks(topic)


def claimed(icd: Icd) -> frozenset[str]:
    """Return the fields of the ICD that some check looks at."""
    return frozenset(claim for check in all_checks(icd) for claim in check.claims)
