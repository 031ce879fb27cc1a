"""Tenants and who acts in them.

`User` is the only global table: a person's sign-in, without tenant data. Everything a tenant knows of a person is in `Member`.
Foreign keys carry no constraint here; the migration lays them composite with `tenant_id`.
"""

from typing import ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Lower

from kernel import ids
from kernel.models import TenantModel


class Role(models.TextChoices):
    OWNER = "owner"
    ADMIN = "admin"
    OPERATOR = "operator"
    APPROVER = "approver"
    COMPLIANCE = "compliance"
    AUDITOR = "auditor"
    VIEWER = "viewer"


class UserManager(BaseUserManager["User"]):
    def get_by_natural_key(self, username: str | None) -> "User":
        return self.get(email__iexact=username)


class User(AbstractBaseUser):
    """A person who signs in. Not matched to tenants by e-mail: only a membership counts."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    email = models.EmailField(max_length=254)
    name = models.CharField(max_length=120)
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = ["name"]

    objects: ClassVar[UserManager] = UserManager()

    class Meta:
        constraints = [models.UniqueConstraint(Lower("email"), name="tenancy_user_email_unique")]

    def __str__(self) -> str:
        return self.name


class Tenant(models.Model):
    """An organisation. Its row is visible only inside its own context."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    slug = models.SlugField(max_length=40, db_index=False)
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["slug"], name="tenancy_tenant_slug_unique")]


class Project(TenantModel):
    slug = models.SlugField(max_length=40, db_index=False)
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant_id", "slug"], name="tenancy_project_slug_unique")]


class Member(TenantModel):
    """A user in a tenant. `name` and `email` are the tenant's own copies, so that a tenant never reads the global table."""

    user_id = models.UUIDField()
    email = models.EmailField(max_length=254)
    name = models.CharField(max_length=120)
    roles = ArrayField(models.CharField(max_length=20, choices=Role.choices))
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "user_id"], name="tenancy_member_user_unique"),
            models.CheckConstraint(
                condition=models.Q(roles__contained_by=Role.values) & models.Q(roles__len__gte=1),
                name="tenancy_member_roles_known",
            ),
        ]
        indexes = [models.Index("user_id", name="tenancy_member_user")]


class Agent(TenantModel):
    """A registered program. Its versions are recorded on the runs that they execute. `owner_id`: the member it acts for."""

    slug = models.SlugField(max_length=60, db_index=False)
    name = models.CharField(max_length=120)
    owner_id = models.UUIDField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant_id", "slug"], name="tenancy_agent_slug_unique")]


class ApiKey(TenantModel):
    """A credential of an agent or service. The secret is stored only as a keyed digest and shown once.

    `version` grows with every change of what the key may do, so that a cached copy is refused by the database at once.
    `issued_by` is the member behind it, who issued it or the key that issued it.
    """

    prefix = models.CharField(max_length=12)
    digest = models.BinaryField(max_length=32)
    name = models.CharField(max_length=120)
    scopes = ArrayField(models.CharField(max_length=40))
    agent = models.ForeignKey(Agent, null=True, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    project_ids = ArrayField(models.UUIDField(), null=True)
    version = models.IntegerField(default=1)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=160)
    issued_by = models.UUIDField(null=True)
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    replaced_by = models.UUIDField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["prefix"], name="tenancy_apikey_prefix_unique")]
