"""What `/openapi.json` says of the native API beyond its routes and types."""
