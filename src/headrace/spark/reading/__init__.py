"""Reading topics by Spark: where to read, cutting that into tasks, and the rows themselves."""
