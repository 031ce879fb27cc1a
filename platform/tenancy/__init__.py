"""Tenants, projects, members, roles, agents and API keys: who there is, and who may do what."""
