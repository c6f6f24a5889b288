"""Simulated sources of alerts."""
