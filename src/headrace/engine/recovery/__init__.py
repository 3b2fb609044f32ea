"""Recovery: from a snapshot and the log after it to the state before the stop."""
