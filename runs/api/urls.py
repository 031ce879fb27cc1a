"""The routes of runs. Those in HOT are dispatched without Django's resolver, signals and middleware (config.wsgi)."""

from django.urls import path

from runs.api import hot, views

HOT = [
    path("runs/<uuid:run_id>/commit", hot.commit),
    path("work/claim", hot.claim),
    path("work/<uuid:lease>/heartbeat", hot.heartbeat),
    path("runs/<uuid:run_id>/checkpoints/latest", hot.latest_checkpoint),
    path("runs/<uuid:run_id>/events", hot.events),
]

urlpatterns = [
    *HOT,
    path("runs", views.runs),
    path("runs/<uuid:run_id>", views.RunView.as_view()),
    path("runs/<uuid:run_id>/resume", views.ResumeView.as_view()),
    path("runs/<uuid:run_id>/cancel", views.CancelView.as_view()),
    path("runs/<uuid:run_id>/verify", views.VerifyView.as_view()),
]
