"""The client for asyncio, and the source that the synchronous one is generated from."""
