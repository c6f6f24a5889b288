"""The bus side of any flow: bus, transactions, windows, event loop, the interface as data, and the program.

Its readers know Kafka and Tango, and need to know nothing of the telescope. It has no flow, no topic and no device
class. `facade/kernel/manifest.py` says what a flow gives it. Begin with ``docs/explanation/kernel.md``, which names 13
files in reading order. ``tests/surface.py`` lists the modules that flows of other distributions may import.
"""
