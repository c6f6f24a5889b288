"""Logs and metrics of nodes, as shippers send them, summed up for operators."""
