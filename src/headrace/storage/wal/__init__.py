"""The write-ahead log: its bytes, its files, writing it, reading it back, and repairing it."""
