"""Reservations of resources: who holds what until when."""
