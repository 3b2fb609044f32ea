"""The Durable Streams protocol below /v1/stream/: streams of bytes or JSON messages as topics."""
