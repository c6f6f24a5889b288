"""The local runtime: a real Kafka broker and a real Tango database, without root and without containers.

For development, demos and tests. All data, logs and the state file are in one folder. Running services are identified
by process id *and* start time, so another program is never stopped. Data survive a stop, a crash and a restart until
they are wiped on purpose.
"""
