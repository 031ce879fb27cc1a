"""The embedded topology: PostgreSQL and Valkey from wheels and every Smriti process, supervised by one command.

Invariant: services keep their data in a private folder, listen on 127.0.0.1 with a password, and never run as root.
"""
