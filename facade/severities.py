"""The severities of alerts: their names and their order.

The names are those of the JSON Schema of the message `alert`. The order decides which of two alerts is the worse one.
An alarm has the severity of its newest active alert; see `facade/flows/alerts/ledger.py`.
The severity of each alert of ours stands where it is raised: `HealthIssue.alert_severity`, or `Fault`.
"""

from typing import get_args

from facade import messages

Severity = messages.AlertSeverity
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the mildest to the gravest."""
INFO, WARNING, ALARM, CRITICAL = SEVERITIES
