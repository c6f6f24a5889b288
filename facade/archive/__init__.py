"""The archive: every record of the bus as Parquet files, by topic and hour, each exactly once.

It is for data engineers. It stands above the flows, whose messages and laws it imports. Begin with
`facade.archive.worker`, which writes the files, and `facade.archive.reading`, which reads them. History, replay,
comparison, restore, NeXus and the report of a night (`facade.archive.night`) are made from these files alone.
"""
