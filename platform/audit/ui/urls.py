from django.urls import path

from audit.ui import log

app_name = "audit"
urlpatterns = [
    path("t/<slug:slug>/audit/", log.AuditLog.as_view(), name="list"),
    path("t/<slug:slug>/audit/verify/", log.Verify.as_view(), name="verify"),
]
