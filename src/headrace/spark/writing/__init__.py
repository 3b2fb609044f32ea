"""Writing topics by Spark: rows cut into chunks, and each of them stored once."""
