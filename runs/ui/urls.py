from django.urls import path

from runs.ui import inspector, listing

app_name = "runs"
urlpatterns = [
    path("t/<slug:slug>/runs/", listing.RunList.as_view(), name="list"),
    path("t/<slug:slug>/runs/<uuid:run_id>/", inspector.Overview.as_view(), name="detail"),
    path("t/<slug:slug>/runs/<uuid:run_id>/events/", inspector.Events.as_view(), name="events"),
    path("t/<slug:slug>/runs/<uuid:run_id>/events/<int:seq>/", inspector.Event.as_view(), name="event"),
    path("t/<slug:slug>/runs/<uuid:run_id>/events/<int:seq>/payload/", inspector.Payload.as_view(), name="payload"),
    path(
        "t/<slug:slug>/runs/<uuid:run_id>/events/<int:seq>/payload.json",
        inspector.RawPayload.as_view(),
        name="raw_payload",
    ),
    path("t/<slug:slug>/runs/<uuid:run_id>/state/", inspector.State.as_view(), name="state"),
    path("t/<slug:slug>/runs/<uuid:run_id>/verify/", inspector.Verify.as_view(), name="verify"),
    path("t/<slug:slug>/runs/<uuid:run_id>/cancel/", inspector.Cancel.as_view(), name="cancel"),
]
