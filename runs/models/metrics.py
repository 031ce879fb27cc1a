"""Roll-ups of the logs: numbers for each hour, workflow and version, without any personal data.

They are counted once for each event: the cursor in the tenant's feed moves in the transaction that adds to the numbers.
"""

from django.db import models

from kernel import context
from kernel.models import TenantRow


class Rollup(TenantRow):
    """What was counted in one hour. `name`: a step, tool, queue, model or currency, by the metric. `slot`: of a histogram
    (runs.queries.metrics), else -1000.

    `count` is how often; `total` sums what was measured (seconds, money, tokens). Runs without an agent have the agent of zeros.
    """

    pk = models.CompositePrimaryKey(
        "tenant_id",
        "hour",
        "project_id",
        "agent_id",
        "workflow",
        "workflow_version",
        "agent_version",
        "metric",
        "name",
        "slot",
    )
    hour = models.DateTimeField()
    project_id = models.UUIDField()
    agent_id = models.UUIDField()
    workflow = models.CharField(max_length=64)
    workflow_version = models.CharField(max_length=64)
    agent_version = models.CharField(max_length=64)
    metric = models.CharField(max_length=32)
    name = models.CharField(max_length=64)
    slot = models.SmallIntegerField()
    count = models.BigIntegerField()
    total = models.DecimalField(max_digits=32, decimal_places=9)


class RollupTotal(TenantRow):
    """The same since ever, for the operator of the platform: without workflows, versions and names."""

    pk = models.CompositePrimaryKey("tenant_id", "metric", "slot")
    metric = models.CharField(max_length=32)
    slot = models.SmallIntegerField()
    count = models.BigIntegerField()
    total = models.DecimalField(max_digits=32, decimal_places=9)


class RollupCursor(TenantRow):
    """Up to where the tenant's feed was counted. Its row is the lock under which it is counted."""

    tenant_id = models.UUIDField(primary_key=True, default=context.current_tenant, editable=False)
    position = models.BigIntegerField()
    seq = models.BigIntegerField()
