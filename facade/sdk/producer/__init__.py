"""Producers of ingest nodes: columnar batches that survive an outage of the brokers."""
