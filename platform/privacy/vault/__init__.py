"""The vault: wrapped keys in a database cluster of its own, with its own backups, so that a backup of the main database cannot
be read for an erased subject."""
