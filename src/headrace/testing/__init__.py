"""Stand-ins for the disk and an oracle for the engine, shipped so that users can test on them."""
