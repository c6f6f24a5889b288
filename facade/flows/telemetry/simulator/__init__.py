"""Plays the ingest nodes."""
