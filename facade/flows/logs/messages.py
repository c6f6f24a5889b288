"""The topics of logs and metrics, and the record with the summary of a transaction."""

from typing import Final

from facade.kernel.codec.decode import BatchDecoder
from facade.sdp.messages import LogCount as LogCount
from facade.sdp.messages import LogError as LogError
from facade.sdp.messages import LogSummary as LogSummary
from facade.sdp.messages import NodeMetric as NodeMetric
from facade.sdp.messages import ShipperSequence as ShipperSequence

LOGS, METRICS, SUMMARY = "logs", "metrics", "logs.summary"
TOPICS: Final = (LOGS, METRICS)

decode_summary = BatchDecoder(LogSummary).decode_one
