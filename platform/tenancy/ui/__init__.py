"""Pages of a tenant's people and credentials, and of a signed-in person."""
