"""The synchronous client: `net.py` is written by hand, the rest by tools/unasync.py."""
