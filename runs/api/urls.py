"""The routes of runs. Those in HOT are dispatched without Django's resolver, signals and middleware (config.wsgi)."""

from typing import Any

from django.urls import path, register_converter

from runs.api import (
    artifacts,
    effects,
    hot,
    metrics,
    outbox,
    queues,
    registry,
    replay,
    resume,
    schedules,
    streams,
    views,
)


class IdentifierConverter:
    """A name of the vocabulary (`runs.wire.Identifier`). It may have slashes; `/versions/` ends it."""

    regex = "[A-Za-z0-9](?:(?!/versions/)[A-Za-z0-9_.:@/+-]){0,63}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: Any) -> str:
        return str(value)


register_converter(IdentifierConverter, "identifier")

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
    path("runs/<uuid:run_id>/resume", resume.ResumeView.as_view()),
    path("runs/<uuid:run_id>/replay", replay.ReplayView.as_view()),
    path("runs/<uuid:run_id>/fork", resume.ForkView.as_view()),
    path("runs/<uuid:run_id>/events/stream", streams.run_elsewhere),
    path("events/stream", streams.tenant_elsewhere),
    path("metrics/runs", metrics.RunsMetricsView.as_view()),
    path("metrics/steps", metrics.StepsMetricsView.as_view()),
    path("metrics/tools", metrics.ToolsMetricsView.as_view()),
    path("metrics/cost", metrics.CostMetricsView.as_view()),
    path("metrics/queues", metrics.QueuesMetricsView.as_view()),
    path("runs/<uuid:run_id>/cancel", views.CancelView.as_view()),
    path("runs/<uuid:run_id>/recover", views.RecoverView.as_view()),
    path("runs/recover", views.RecoverManyView.as_view()),
    path("runs/<uuid:run_id>/signals", effects.signal),
    path("runs/<uuid:run_id>/effects", effects.reserve),
    path("runs/<uuid:run_id>/effects/<uuid:effect_id>/outcome", effects.outcome),
    path("effects", effects.EffectsView.as_view()),
    path("effects/<uuid:effect_id>", effects.EffectView.as_view()),
    path("effects/<uuid:effect_id>/reconcile", effects.ReconcileView.as_view()),
    path("gates", effects.GatesView.as_view()),
    path("gates/<uuid:gate_id>/satisfy", effects.SatisfyView.as_view()),
    path("gates/<uuid:gate_id>/refuse", effects.RefuseView.as_view()),
    path("runs/<uuid:run_id>/verify", views.VerifyView.as_view()),
    path("queues", queues.QueuesView.as_view()),
    path("queues/<identifier:queue>", queues.QueueView.as_view()),
    path("tools", registry.ToolsView.as_view()),
    path("tools/<identifier:tool>", registry.ToolView.as_view()),
    path("tools/<identifier:tool>/versions/<identifier:version>", registry.ToolVersionView.as_view()),
    path("workflows", registry.WorkflowsView.as_view()),
    path("workflows/<identifier:workflow>", registry.WorkflowView.as_view()),
    path("workflows/<identifier:workflow>/versions/<identifier:version>", registry.WorkflowVersionView.as_view()),
    path("schedules", schedules.Schedules.as_view()),
    path("schedules/<uuid:schedule_id>", schedules.Schedule.as_view()),
    path("schedules/<uuid:schedule_id>/pause", schedules.SchedulePause.as_view()),
    path("schedules/<uuid:schedule_id>/resume", schedules.ScheduleResume.as_view()),
    path("schedules/<uuid:schedule_id>/run-now", schedules.ScheduleRunNow.as_view()),
    path("schedules/<uuid:schedule_id>/fires", schedules.ScheduleFires.as_view()),
    path("outbox", outbox.Outbox.as_view()),
    path("outbox/retry", outbox.OutboxRetries.as_view()),
    path("outbox/<uuid:message_id>/retry", outbox.OutboxRetry.as_view()),
    path("outbox/<uuid:message_id>/skip", outbox.OutboxSkip.as_view()),
    path("runs/<uuid:run_id>/artifacts", artifacts.RunArtifacts.as_view()),
    path("artifacts", artifacts.Artifacts.as_view()),
    path("artifacts/<uuid:artifact_id>", artifacts.ArtifactView.as_view()),
    path("artifacts/<uuid:artifact_id>/upload", artifacts.UploadAddress.as_view()),
    path("artifacts/<uuid:artifact_id>/download", artifacts.DownloadAddress.as_view()),
]
