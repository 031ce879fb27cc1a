"""Bases of the pages: who looks, in which tenant, and the parts of every page. Knows no app; apps bring views and read models."""
