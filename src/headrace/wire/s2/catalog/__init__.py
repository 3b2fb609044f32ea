"""The catalog of the S2 API: basins, access tokens and locations, kept in a topic of the server."""
