"""Bases of the pages: who looks, in which tenant, and the parts every page is built from. Knows no app; apps bring views and read models."""
