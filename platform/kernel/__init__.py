"""The toolbox every app stands on: time, ids, errors, JSON, the tenant context and row-level security. No models of its own."""
