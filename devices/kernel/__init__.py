"""The Tango side of any flow: base class, mapping of values, server, and standby."""
