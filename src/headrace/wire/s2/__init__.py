"""The S2 v1 API: basins, streams of records, sessions, access tokens and metrics, as topics."""
