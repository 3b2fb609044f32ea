"""Reading: pages of records from memory, sealed files and archives, from a cursor to the head."""
