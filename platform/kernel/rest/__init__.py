"""What every REST route stands on: strict typed bodies, problems, idempotency, limits, conditions, pages, the schema.

The hot paths are plain views that use the same parts; `ApiView` puts them together for everything else.
"""
