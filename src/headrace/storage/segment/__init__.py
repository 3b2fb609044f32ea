"""Sealed segments: Arrow files of records, written once, verified before they are read."""
