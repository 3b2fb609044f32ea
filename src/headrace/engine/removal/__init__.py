"""Removal of records: by caps, by time to live, on request; held back until archived."""
