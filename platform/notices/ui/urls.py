"""Where webhooks are looked after, and where each member chooses its e-mails."""

from django.urls import path

from notices.ui import webhooks, wishes

app_name = "notices"
urlpatterns = [
    path("t/<slug:slug>/webhooks/", webhooks.Webhooks.as_view(), name="webhooks"),
    path("t/<slug:slug>/webhooks/new/", webhooks.Create.as_view(), name="webhook_new"),
    path("t/<slug:slug>/webhooks/<uuid:endpoint_id>/", webhooks.Webhook.as_view(), name="webhook"),
    path("t/<slug:slug>/webhooks/<uuid:endpoint_id>/change/", webhooks.Change.as_view(), name="webhook_change"),
    path("t/<slug:slug>/webhooks/<uuid:endpoint_id>/rotate/", webhooks.Rotate.as_view(), name="webhook_rotate"),
    path("t/<slug:slug>/webhooks/<uuid:endpoint_id>/delete/", webhooks.Delete.as_view(), name="webhook_delete"),
    path("t/<slug:slug>/notifications/", wishes.Notifications.as_view(), name="notifications"),
]
