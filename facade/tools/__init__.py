"""Sub-commands for a site engineer: audit, dead letters, rights, quotas, topics, and the exports of the interface.

`facade.tools.subcommands` lists them, and each module has one group. `facade.admin` has their requests to brokers.
Begin with `facade.tools.exports`, which derives all files from the interface, or with ``docs/site-engineer.md``.
"""
