"""SDP's controllers: handlers of commands, and the rules that make their execution safe.

Programs import them from `sdp_facade_sdk`.
"""
