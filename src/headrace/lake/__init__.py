"""The lake: the history of topics as Delta tables that everybody can open.

It needs the extra `headrace[lake]`.  The serving process imports `lake/serving/lake_archive.py`
alone, and what that needs to read tables, `headrace[cold]`, only once somebody reads what only the
lake has.
"""
