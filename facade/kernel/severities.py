"""The severities of alerts: their names and their order.

The names are those of the JSON Schema of the message `alert`. The order decides which of two alerts is worse. An alarm
has the severity of its newest active alert; see `facade/flows/alerts/ledger.py`. An alert of the facade has its
condition's (`schemas/icd/conditions.toml`), unless its source gives another: `HealthIssue.severity`, `Fault.severity`.
A severity implies no healthState: `HealthIssue.health_state` is set beside it. Its device turns severities into counts
and worstSeverity (`facade/flows/alerts/composition.py`).
"""

from typing import get_args

from facade.kernel import messages

Severity = messages.AlertSeverity
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the mildest to the gravest."""
INFO, WARNING, ALARM, CRITICAL = SEVERITIES
