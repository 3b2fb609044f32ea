"""Subscriptions of Durable Streams: who is woken when streams have something new, and how far."""
