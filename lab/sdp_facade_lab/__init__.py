"""What proves the system: testbed, demo, bench and fault runs; nothing imports it."""
