"""Every route. `/api/` is served without the pages' middleware (config.wsgi)."""

from django.urls import include, path

from config import health, metrics
from kernel.web import door, navigation
from runs.ui.attention import nav_counts
from tenancy.ui.door import enter
from tenancy.ui.urls import account_urlpatterns

door.install(enter)
navigation.install(nav_counts)

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("api/v1/", include("kernel.rest.urls")),
    path("api/v1/", include("runs.api.urls")),
    path("api/v1/", include("tenancy.api.urls")),
    path("api/v1/", include("audit.api.urls")),
    path("", include("kernel.web.urls")),
    path("", include("tenancy.ui.urls")),
    path("", include("runs.ui.urls")),
    path("", include("audit.ui.urls")),
    *account_urlpatterns,
]

handler400 = "config.errors.bad_request"
handler403 = "config.errors.forbidden"
handler404 = "config.errors.not_found"
handler500 = "config.errors.server_error"
