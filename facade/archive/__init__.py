"""The archive: every record of the bus as Parquet files, by topic and hour, each exactly once."""
