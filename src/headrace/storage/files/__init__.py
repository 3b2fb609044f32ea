"""The sealed files: which there are, where they lie, how they are merged, moved, cached."""
