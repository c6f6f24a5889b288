"""Stand-ins for the SDP side of the bus, which know exactly what they sent and what must become of it."""
