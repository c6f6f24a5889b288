"""The fuzz: records of all kinds, good and bad, on every topic that the facade reads; each must be accounted for."""
