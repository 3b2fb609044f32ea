"""The lake: the history of topics as Delta tables that everybody can open.

The serving process never imports this package; it needs the extra `headrace[lake]`.
"""
