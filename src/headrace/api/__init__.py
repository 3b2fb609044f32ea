"""The JSON of the native API: every request, answer and event as a struct, written once.

The server decodes and documents these structs, the client encodes and reads them, and pipelines are
stored in them.  This package imports only `core` and msgspec.  One module for each resource.

How a struct treats fields depends on its direction:

- A request body is a `Body` (`base.py`).  The server ignores fields that it does not know and
  checks the types and bounds of those that it does; the client leaves out every field that has its
  default, which is None wherever the server decides.
- An answer is an `Answer`.  The client ignores fields that it does not know, so that a newer server
  may add some, and a default stands for a field that an older server did not send yet.  The server
  sends every field, except those marked `LEFT_OUT`, which it sends where they say something.
- Where readers accept more than the server sends today, `documented` gives `/openapi.json` the
  narrower type.  `schema_name` is the struct's name there, and its docstring the description that
  users read.
- Payloads are `Json`: bytes that are never parsed on the way, so that they come back verbatim.
"""
