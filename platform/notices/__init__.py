"""What the platform tells people and other systems: e-mail and webhooks, both through the outbox."""
