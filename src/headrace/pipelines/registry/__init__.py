"""What a server keeps of pipelines: their declarations, checked, and what workers report."""
