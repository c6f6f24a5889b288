"""Alerts: numbered one by one, and folded into the states of alarms (IEC 62682)."""
