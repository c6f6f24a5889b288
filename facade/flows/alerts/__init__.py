"""Alerts: numbered one by one, and folded to the states of alarms (IEC 62682)."""
