"""Tango clients of the devices: the live view, alert subscription, the conformance kit."""
