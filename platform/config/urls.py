"""Every route. `/api/` is served without the pages' middleware (config.wsgi)."""

from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("runs.api.urls")),
]
