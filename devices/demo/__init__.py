"""The whole system on one machine, with a simulated SDP, two accidents, and an account to the last record."""
