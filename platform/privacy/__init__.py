"""Subjects, data keys and the vault, and the codec every payload passes through: guarded, compressed, encrypted, committed to."""
