"""The parts of the soak: clients of every dialect, the ledger of what they were told, the lives of
the server, and what is measured of it."""
