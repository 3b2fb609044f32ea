"""Sealing: the log and memory become files, files are merged, a snapshot lists them."""
