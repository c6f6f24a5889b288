"""The conformance kit: asks a running system, through Tango and the bus only, whether it is as the ICD says."""
