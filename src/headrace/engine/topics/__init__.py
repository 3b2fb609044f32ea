"""Topics: their state, their configuration, their names, and how they come and go."""
