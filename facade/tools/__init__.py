"""Sub-commands for a site engineer: audit, dead letters, rights, quotas, topics, and the exports of the interface.

`facade.tools.subcommands` lists them, and each module has one group. The module `facade.admin` has the requests to brokers.
Begin with `facade.tools.exports`, which derives all files from the interface, or with ``docs/site-engineer.md``.
"""
