"""The topics of logs and metrics, and the record with the summary of a transaction."""

from typing import Final

from facade.codec.decode import BatchDecoder
from facade.messages import LogCount as LogCount
from facade.messages import LogError as LogError
from facade.messages import LogSummary as LogSummary
from facade.messages import NodeMetric as NodeMetric
from facade.messages import ShipperSequence as ShipperSequence

LOGS, METRICS, SUMMARY = "logs", "metrics", "logs.summary"
TOPICS: Final = (LOGS, METRICS)

decode_summary = BatchDecoder(LogSummary).decode_one
