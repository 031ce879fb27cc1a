"""The feed of a tenant: in which order the logs of its runs grew.

Sequence numbers are of one run, and transactions of different runs become visible in another order than they began. So the feed is
numbered afterwards, under a lock: one row for each stretch of a run's log, its `position` given by the tenant's head. Invariants:
a position is visible only when all before it are; the stretches of a run follow one another without gap or overlap; and a run whose
`feed_due` is false stands in the feed up to its `last_seq`. Written by `runs/sql/feed.sql` only.
"""

from django.db import models

from kernel import context
from kernel.models import TenantModel, TenantRow


class Feed(TenantRow):
    """Events `first_seq` to `last_seq` of a run, at a place in the tenant's order."""

    pk = models.CompositePrimaryKey("tenant_id", "position")
    position = models.BigIntegerField()
    run_id = models.UUIDField()
    first_seq = models.BigIntegerField()
    last_seq = models.BigIntegerField()


class FeedHead(TenantRow):
    """The last position that was given. Its row is the lock under which positions are given."""

    tenant_id = models.UUIDField(primary_key=True, default=context.current_tenant, editable=False)
    position = models.BigIntegerField()


class FeedDue(TenantModel):
    """A run whose log grew a moment ago; `id` is the run. `fed_seq`: how much of it stands in the feed."""

    fed_seq = models.BigIntegerField()
