"""The worker of pipelines: claims declarations and runs them as streaming queries."""
