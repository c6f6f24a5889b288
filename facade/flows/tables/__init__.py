"""Large tables over the bus: in segments or by reference, announced when they are complete and verified."""
