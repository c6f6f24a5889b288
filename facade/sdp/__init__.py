"""What the flows of SDP share: its records, the states of its devices, heartbeats, and the division into racks."""
