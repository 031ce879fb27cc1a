"""The REST face of the audit log."""
