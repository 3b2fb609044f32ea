"""Routers: copies from one topic into others, derived from the log and rebuilt from it."""
