"""The composition root: settings, URLs, processes and the embedded services. Imports every app; no app imports it."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
