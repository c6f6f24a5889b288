"""The bus side of any flow: bus, transactions, windows, event loop, the interface as data, and the program.

It is for somebody who knows Kafka and Tango and never heard of the telescope: it knows no flow, no topic and no device
class. `facade/kernel/manifest.py` says what a flow gives it. Begin with ``docs/explanation/kernel.md``, which names 13
files in reading order. ``tests/surface.py`` lists the modules that flows of other distributions may import.
"""
