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

_REASONS: Mapping[str, str] = {
    "how a value is made of records; whether it is right only the account of the demo shows, record by record": """
        Attribute.source Attribute.account Source.topic Source.rule Source.field Source.over Source.q Source.of
        AccountSource.stream AccountSource.figure DeviceClass.state_source""",
    "for people; neither Tango nor Kafka has a place for it": """
        Command.description Query.description DeviceClass.description Topic.description Role.description Role.side
        Condition.response Condition.priority""",
    "who may is for the broker's access rules to say; who did does not stand in a record": """
        Topic.writers Topic.readers Icd.roles Icd.quotas""",
    "a rule of the aggregate workers; the demo's account shows it": """
        Window.length Window.disorder Window.time Window.group Window.sequence Window.epoch Window.quantile_error
        Window.summary Window.groups Window.most_groups Window.all_expected""",
    "no Tango device: only its own controller executes what another one orders": """
        Icd.executors Executor.description Executor.device Executor.commands""",
    "has become attributes when the interface was read, which are compared one by one": """
        Topic.account Account.about Account.figures Account.suppressed Account.lag DeviceClass.accounts
        AccountFigure.label AccountFigure.description AccountFigure.format AccountFigure.stale_after
        AccountFigure.limits""",
    "shown by the tests of the alarms only: the test alert takes a condition without": """
        Condition.on_delay Condition.off_delay Condition.re_alarm Condition.re_alarm_growth Condition.suppressed_by""",
    "what a deadband holds back cannot be seen from outside": "Sampling.absolute Sampling.relative",
    "an event is due by then only if a value was held back, which cannot be seen from outside": "Sampling.longest",
    "shown only by a system on which nothing was ever reported": "Attribute.initial",
    "how flows are kept apart inside the facade; a topic does not show it": "Topic.qos",
    "see its fields": "Topic.window",
    "which there may be; each attribute's own is compared": "Icd.units",
}
UNCHECKED: Mapping[str, str] = {field: reason for reason, fields in _REASONS.items() for field in fields.split()}
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
