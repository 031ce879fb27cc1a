"""The routes of runs. Those in HOT are dispatched without Django's resolver, signals and middleware (config.wsgi)."""

from django.urls import path

from runs.api import hot

HOT = [
    path("runs/<uuid:run_id>/commit", hot.commit),
    path("work/claim", hot.claim),
    path("work/<uuid:lease>/heartbeat", hot.heartbeat),
    path("runs/<uuid:run_id>/checkpoints/latest", hot.latest_checkpoint),
    path("runs/<uuid:run_id>/events", hot.events),
]

urlpatterns = [*HOT, path("runs", hot.create)]
