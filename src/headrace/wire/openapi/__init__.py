"""The OpenAPI document of every route and the page at `/docs` that shows it."""
