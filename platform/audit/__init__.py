"""The audit log of a tenant: append-only, hash-chained, its free text sealed."""
