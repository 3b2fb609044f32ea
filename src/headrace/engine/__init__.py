"""What a topic means: sequence numbers, floors, retention, deletes and reads over `storage/`."""
