"""Queues: who holds which job, how that survives, and where a job goes that nobody finishes."""
