"""What the control instance shows: the accounts of all streams, health with its reasons, adminMode."""
