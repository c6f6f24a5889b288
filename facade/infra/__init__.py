"""The local runtime: a real Kafka broker and a real Tango database, without root and without containers.

For development, demos and tests. All data, logs and the state file live in one folder; what runs
there is found again by process id *and* start time, so nothing that somebody else started is
ever stopped. Data survive a stop, a crash and a restart until they are wiped on purpose.
"""
