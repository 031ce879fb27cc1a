"""Durable runs: steps under leases, an append-only hash-chained event log, and checkpoints stored by change. See PROTOCOL.md."""
