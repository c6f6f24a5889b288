"""The topics of logs and metrics, and the record that sums up what a transaction found in them."""

from typing import Final

from facade import messages
from facade.codec.decode import BatchDecoder

LOGS, METRICS, SUMMARY = "logs", "metrics", "logs.summary"
"""Topics, by their names in the ICD."""
TOPICS: Final = (LOGS, METRICS)
"""Those that shippers write."""

LogSummary = messages.LogSummary
LogCount = messages.LogCount
LogError = messages.LogError
ShipperSequence = messages.ShipperSequence
NodeMetric = messages.NodeMetric
decode_summary = BatchDecoder(LogSummary).decode_one
