"""Loading records into topics: replay from the lake and import of files, each record once."""
