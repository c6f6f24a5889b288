"""Simulated ingest nodes."""
