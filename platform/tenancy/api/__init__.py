"""The REST face of tenancy: the tenant's projects, agents, members and API keys."""
