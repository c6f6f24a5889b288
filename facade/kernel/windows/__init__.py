"""Windows of telemetry, below the flows: partial sums as columns, and when a window is closed."""

KEPT_WINDOWS = 3
"""Closed windows kept: the shown one, and others for stragglers."""
MOST_WINDOWS = 8
"""Windows kept while a worker stands still, beside windows of early records."""
MOST_RUNS = 200_000
"""Runs of sequence numbers of all groups together, so that their totals fit into a snapshot."""
