"""Sub-commands for a site engineer: audit, dead letters, rights, quotas, topics, and the exports of the interface."""
