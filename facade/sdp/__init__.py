"""What the flows of SDP share: messages and columnar batches, states and complaints of devices, alarms, and racks."""
