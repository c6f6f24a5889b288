"""The whole system on one machine, with a simulated SDP, an observation, accidents, and an account of it all."""
