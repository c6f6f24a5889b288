"""What the flows of SDP share: records, states and complaints of devices, alarms and their judgement, and racks."""
