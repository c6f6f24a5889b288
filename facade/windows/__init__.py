"""Windows of telemetry, below the flows: partial sums as columns, and when a window is closed."""
