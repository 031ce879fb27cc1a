"""The REST face of notices: webhook endpoints and their deliveries."""
