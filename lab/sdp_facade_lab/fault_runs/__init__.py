"""Fault runs: thousands of commands, alerts or tables while parts are killed, and the account of all of them."""
