from django.urls import path

from runs.api import hot

urlpatterns = [
    path("runs", hot.create),
    path("runs/<uuid:run_id>/commit", hot.commit),
    path("runs/<uuid:run_id>/events", hot.events),
    path("runs/<uuid:run_id>/checkpoints/latest", hot.latest_checkpoint),
    path("work/claim", hot.claim),
    path("work/<uuid:lease>/heartbeat", hot.heartbeat),
]
