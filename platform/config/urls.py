"""Every route. `/api/` is served without the pages' middleware (config.wsgi)."""

from django.urls import include, path

from approvals.ui.base import nav_count
from config import health, metrics
from kernel.web import door, navigation
from kernel.web.door import Visitor
from runs.ui import attention
from tenancy.ui.door import enter
from tenancy.ui.urls import account_urlpatterns

door.install(enter)


def _nav_counts(visitor: Visitor) -> dict[str, int]:
    waiting = {"approvals": nav_count(visitor)} if visitor.may("approvals:read") else {}
    return {**attention.nav_counts(visitor), **waiting}


navigation.install(_nav_counts)

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("api/v1/", include("kernel.rest.urls")),
    path("api/v1/", include("runs.api.urls")),
    path("api/v1/", include("tenancy.api.urls")),
    path("api/v1/", include("audit.api.urls")),
    path("api/v1/", include("approvals.api.urls")),
    path("api/v1/", include("notices.api.urls")),
    path("", include("kernel.web.urls")),
    path("", include("tenancy.ui.urls")),
    path("", include("runs.ui.urls")),
    path("", include("approvals.ui.urls")),
    path("", include("audit.ui.urls")),
    path("", include("notices.ui.urls")),
    *account_urlpatterns,
]

handler400 = "config.errors.bad_request"
handler403 = "config.errors.forbidden"
handler404 = "config.errors.not_found"
handler500 = "config.errors.server_error"
