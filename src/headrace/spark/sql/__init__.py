"""Topics as tables: what a statement sees, needs and says when it goes wrong."""
