"""Which actions need approval, whose, and who decides in whose place."""

from typing import ClassVar

from django.contrib.auth.models import Permission
from django.db import models
from guardian.managers import UserObjectPermissionManager
from guardian.models import UserObjectPermissionBase

from kernel.models import TenantManager, TenantModel
from tenancy.models import User


class Policy(TenantModel):
    """A named rule. `active_version` is the number of the version in force; a disabled policy matches nothing."""

    name = models.CharField(max_length=64)
    priority = models.IntegerField(default=0)
    enabled = models.BooleanField(default=True)
    active_version = models.IntegerField()
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        permissions = [("decide", "May decide what this policy asks for")]
        constraints = [models.UniqueConstraint(fields=["tenant_id", "name"], name="approvals_policy_name_unique")]


class PolicyVersion(TenantModel):
    """What a policy said. Never changed: requests name the version by which they were opened. `rules` is JSON text."""

    policy_id = models.UUIDField()
    version = models.IntegerField()
    rules = models.TextField()
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=160)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "policy_id", "version"], name="approvals_policyversion_number_unique"
            )
        ]


class PermissionManager(TenantManager["PolicyPermission"], UserObjectPermissionManager):
    """Guardian's manager, within the open tenant."""


class PolicyPermission(TenantModel, UserObjectPermissionBase):
    """django-guardian's object permission on a policy, as a table of the tenant. It ends with the membership."""

    user = models.ForeignKey(User, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+")
    permission = models.ForeignKey(
        Permission, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    content_object = models.ForeignKey(
        Policy, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, db_column="policy_id"
    )

    objects: ClassVar[PermissionManager] = PermissionManager()

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "content_object", "user", "permission"], name="approvals_policypermission_unique"
            )
        ]


class Delegation(TenantModel):
    """`from_member_id` is represented by `to_member_id` from `starts_at` until before `ends_at`, for one policy or all.

    `away`: whoever delegates is absent meanwhile and does not decide; then nobody need stand in.
    """

    from_member_id = models.UUIDField()
    to_member_id = models.UUIDField(null=True)
    policy_id = models.UUIDField(null=True)
    away = models.BooleanField(default=False)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.BinaryField(null=True)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=160)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("starts_at")), name="approvals_delegation_window"
            ),
            models.CheckConstraint(
                condition=~models.Q(from_member_id=models.F("to_member_id")), name="approvals_delegation_to_another"
            ),
            models.CheckConstraint(
                condition=models.Q(away=True) | models.Q(to_member_id__isnull=False),
                name="approvals_delegation_says_something",
            ),
        ]
        indexes = [
            models.Index(
                "tenant_id", "to_member_id", condition=models.Q(revoked_at__isnull=True), name="approvals_delegation_to"
            ),
            models.Index(
                "tenant_id",
                "from_member_id",
                condition=models.Q(revoked_at__isnull=True),
                name="approvals_delegation_from",
            ),
        ]
