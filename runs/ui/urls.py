from django.urls import path

from runs import converters  # noqa: F401  # registers the converter `identifier`
from runs.ui import attention, effects, inspector, listing, queues, recovery, registered, resume

app_name = "runs"
_RUN = "t/<slug:slug>/runs/<uuid:run_id>"
_EFFECT = f"{_RUN}/effects/<uuid:effect_id>"
urlpatterns = [
    path("t/<slug:slug>/runs/", listing.RunList.as_view(), name="list"),
    path(f"{_RUN}/", inspector.Overview.as_view(), name="detail"),
    path(f"{_RUN}/events/", inspector.Events.as_view(), name="events"),
    path(f"{_RUN}/events/<int:seq>/", inspector.Event.as_view(), name="event"),
    path(f"{_RUN}/events/<int:seq>/payload/", inspector.Payload.as_view(), name="payload"),
    path(f"{_RUN}/events/<int:seq>/payload.json", inspector.RawPayload.as_view(), name="raw_payload"),
    path(f"{_RUN}/state/", inspector.State.as_view(), name="state"),
    path(f"{_RUN}/verify/", inspector.Verify.as_view(), name="verify"),
    path(f"{_RUN}/effects/", effects.Effects.as_view(), name="effects"),
    path(f"{_EFFECT}/", effects.Effect.as_view(), name="effect"),
    path(f"{_EFFECT}/payload/", effects.EffectPayload.as_view(), name="effect_payload"),
    path(f"{_EFFECT}/reconcile/", effects.Reconcile.as_view(), name="reconcile"),
    path(f"{_RUN}/gates/<uuid:gate_id>/", effects.Gate.as_view(), name="gate"),
    path(f"{_RUN}/cancel/", recovery.Cancel.as_view(), name="cancel"),
    path(f"{_RUN}/resume/", resume.Resume.as_view(), name="resume"),
    path(f"{_RUN}/recover/", recovery.Recover.as_view(), name="recover"),
    path("t/<slug:slug>/attention/", attention.Attention.as_view(), name="attention"),
    path("t/<slug:slug>/attention/recover/", recovery.RecoverMany.as_view(), name="recover_many"),
    path("t/<slug:slug>/queues/", queues.Queues.as_view(), name="queues"),
    path("t/<slug:slug>/queues/*/", queues.Limits.as_view(), {"queue": "*"}, name="every_queue"),
    path("t/<slug:slug>/queues/<identifier:queue>/", queues.Limits.as_view(), name="queue"),
    path("t/<slug:slug>/tools/", registered.Tools.as_view(), name="tools"),
    path("t/<slug:slug>/tools/<identifier:tool>/", registered.Tool.as_view(), name="tool"),
    path(
        "t/<slug:slug>/tools/<identifier:tool>/versions/<identifier:version>/",
        registered.ToolVersion.as_view(),
        name="tool_version",
    ),
    path("t/<slug:slug>/workflows/", registered.Workflows.as_view(), name="workflows"),
    path("t/<slug:slug>/workflows/<identifier:workflow>/", registered.Workflow.as_view(), name="workflow"),
    path(
        "t/<slug:slug>/workflows/<identifier:workflow>/versions/<identifier:version>/",
        registered.WorkflowVersion.as_view(),
        name="workflow_version",
    ),
]
