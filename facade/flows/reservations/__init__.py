"""Reservations of resources, with their owners and expiries."""
