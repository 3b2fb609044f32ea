"""The dialects: pure functions from a request to an engine call to an answer; no sockets here."""
