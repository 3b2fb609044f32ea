"""The native dialect: the `/v0` API of topics, queues, routers, pipelines and live streams."""
