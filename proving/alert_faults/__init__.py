"""The fault run of the alerts: a million of them while parts are killed, and the account of all of them."""
