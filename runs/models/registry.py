"""What a tenant registered of its tools and workflows. A version never changes, but for whether it may be used."""

from django.db import models

from kernel.models import TenantModel


class _Registered(TenantModel):
    """`definition` is the JSON text of `runs.registry`: text, because a number keeps its digits and a schema its order."""

    name = models.CharField(max_length=64)
    version = models.CharField(max_length=64)
    definition = models.TextField()
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=160)

    class Meta:
        abstract = True


class Tool(_Registered):
    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "name", "version"], name="runs_tool_version_unique"),
        ]
        indexes = [
            models.Index(
                "tenant_id", "name", models.F("created_at").desc(), models.F("id").desc(), name="runs_tool_newest"
            ),
        ]


class Workflow(_Registered):
    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "name", "version"], name="runs_workflow_version_unique"),
        ]
        indexes = [
            models.Index(
                "tenant_id", "name", models.F("created_at").desc(), models.F("id").desc(), name="runs_workflow_newest"
            ),
        ]
