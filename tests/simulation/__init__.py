"""The facade in one process: simulated time, a model of the brokers, faults drawn from a seed."""
