"""What proves the system: testbed, demo, bench and fault runs; nothing imports it.

It is for developers; a site gets the demo only. Begin with ``lab/sdp_facade_lab/testbed.py``, which starts brokers,
workers and device servers, then with `sdp_facade_lab.fault_runs.frame` and `sdp_facade_lab.bench.cli`.
"""
