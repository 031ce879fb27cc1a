"""The routes of the process for waits and streams."""

from django.urls import include, path

from config import health

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("", include("runs.api.waits")),
    path("", include("runs.api.streams")),
    path("", include("approvals.api.waits")),
]

handler404 = "kernel.rest.problems.not_found"
handler500 = "kernel.rest.problems.server_error"
