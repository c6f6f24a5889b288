"""The topics of logs and metrics, and the record that sums up what a transaction found in them."""

from typing import Final

from facade.codec.decode import BatchDecoder
from facade.messages import LogCount as LogCount
from facade.messages import LogError as LogError
from facade.messages import LogSummary as LogSummary
from facade.messages import NodeMetric as NodeMetric
from facade.messages import ShipperSequence as ShipperSequence

LOGS, METRICS, SUMMARY = "logs", "metrics", "logs.summary"
"""Topics, by their names in the ICD."""
TOPICS: Final = (LOGS, METRICS)
"""Those that shippers write."""

decode_summary = BatchDecoder(LogSummary).decode_one
