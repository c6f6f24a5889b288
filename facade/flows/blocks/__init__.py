"""Processing blocks: what the controllers of SDP execute, and what became of it."""
