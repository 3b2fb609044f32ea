"""Live reading: followers of topics, told of new records and served from one shared read."""
