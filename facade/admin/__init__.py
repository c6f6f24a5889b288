"""What an administrator of the bus does: topics, rights, quotas, checks, and the redrive of dead letters.

It is for the sub-commands of `facade.tools` and for tests, and it is beside `facade.kernel.bus.kafka` the only package
that imports Kafka's client. Begin with `facade.admin.topics`, which makes topics as the interface has them, and
`facade.admin.rights`, which derives the rights of each role.
"""
