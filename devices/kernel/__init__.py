"""The Tango side without a word of SDP: base class, mapping of values, server, and standby."""
