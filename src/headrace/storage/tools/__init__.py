"""Tools for a data directory that no server uses: check, repair, dump, backup and restore."""
