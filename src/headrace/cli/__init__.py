"""The `headrace` command: parses arguments, calls the layers below, prints text or JSON."""
