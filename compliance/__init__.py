"""Redaction, retention, subjects' rights and erasure. Stands above every app whose data it must reach."""
