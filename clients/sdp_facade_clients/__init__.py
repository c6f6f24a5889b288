"""Tango clients of the devices: the live view, alert subscription, the conformance kit, the operator's page.

They are for operators and testers, and talk to devices through Tango alone. Begin with
`sdp_facade_clients.alert_subscription`, a client that loses nothing; then with `sdp_facade_clients.conformance` and
`sdp_facade_clients.web`, which each explain themselves.
"""
