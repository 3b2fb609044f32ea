"""Bytes that survive: the write-ahead log, sealed segments, snapshots, tiers and their recovery."""
