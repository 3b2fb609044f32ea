"""Streams: topics whose dialect fixes their type, and lets them close, expire and fork."""
