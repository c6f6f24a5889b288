"""Plays sources of alerts."""
