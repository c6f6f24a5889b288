"""Processing blocks: the work of SDP's controllers, and its outcomes."""
