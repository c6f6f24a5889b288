"""Stand-ins for the SDP side of the bus, which know each record sent and its expected outcome."""
