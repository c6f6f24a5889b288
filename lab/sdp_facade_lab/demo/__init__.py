"""The whole system on one machine, with a simulated SDP, an observation, faults, and an account of it all."""
