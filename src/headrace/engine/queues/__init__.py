"""Queues: leases of jobs, how they survive a restart, and dead letters."""
