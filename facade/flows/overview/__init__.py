"""The overview on the control instance: the accounts of all streams, health with its reasons, adminMode."""
