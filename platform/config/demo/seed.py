"""Two demo tenants with people in every role and API keys, and DATA_DIR/demo.json that says how to sign in as them.

Run again, it changes nothing; when demo.json was lost, passwords and keys are replaced: only their digests are stored.
"""

import json
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import django
from django.conf import settings

from config.embedded.secrets import write_private
from kernel import clock, context, ids
from kernel.actor import system


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class House:
    """A demo tenant. The first person is its owner."""

    slug: str
    name: str
    project: tuple[str, str]
    agent: tuple[str, str]
    people: tuple[Person, ...]

    def email(self, person: Person) -> str:
        return f"{person.name.lower().replace(' ', '.')}@{self.slug}.example"


HOUSES: Final = (
    House(
        slug="acme",
        name="Acme Retail",
        project=("finance", "Finance"),
        agent=("invoice-reconciler", "Invoice reconciler"),
        people=(
            Person("Meera Iyer", ("owner", "admin")),
            Person("Priya Nair", ("operator", "approver")),
            Person("Vikram Shah", ("approver",)),
            Person("Ananya Rao", ("compliance",)),
            Person("Farhan Qureshi", ("auditor",)),
            Person("Kabir Menon", ("viewer",)),
        ),
    ),
    House(
        slug="globex",
        name="Globex Logistics",
        project=("dispatch", "Dispatch"),
        agent=("route-planner", "Route planner"),
        people=(
            Person("Rohan Deshmukh", ("owner", "admin")),
            Person("Lakshmi Pillai", ("operator",)),
            Person("Imran Shaikh", ("approver",)),
            Person("Sneha Kulkarni", ("compliance",)),
            Person("Gurpreet Singh", ("auditor",)),
            Person("Divya Reddy", ("viewer",)),
        ),
    ),
)
ACTOR: Final = system("demo")


def main() -> None:
    """Make what is missing and write demo.json."""
    path = Path(settings.DATA_DIR) / "demo.json"
    known = json.loads(path.read_text())["tenants"] if path.exists() else {}
    tenants = {}
    for house in HOUSES:
        tenant = _existing(house)
        if tenant is None or house.slug not in known:
            tenants[house.slug] = _furnish(house, tenant, clock.now())
        else:
            tenants[house.slug] = known[house.slug]
    content = {"base_url": settings.BASE_URL, "waits_url": settings.WAITS_URL, "tenants": tenants}
    write_private(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _existing(house: House) -> UUID | None:
    """The id of the demo tenant: by its owner, because tenants cannot be listed."""
    from tenancy import queries
    from tenancy.models import User

    owner = User.objects.filter(email=house.email(house.people[0])).first()
    memberships = queries.memberships_of(owner.id) if owner else []
    return next((membership.tenant_id for membership in memberships if membership.slug == house.slug), None)


def _furnish(house: House, existing: UUID | None, now: datetime) -> dict[str, Any]:
    """Make the tenant, or give new credentials to the existing one; its part of demo.json. One transaction."""
    from tenancy import operations, queries

    tenant = existing or ids.uuid7()
    with context.tenant_scope(tenant):
        if existing is None:
            operations.create_tenant(tenant=tenant, slug=house.slug, name=house.name, actor=ACTOR, now=now)
            slug, name = house.project
            operations.create_project(tenant=tenant, slug=slug, name=name, actor=ACTOR, now=now)
            slug, name = house.agent
            operations.register_agent(tenant=tenant, slug=slug, name=name, actor=ACTOR, now=now)
        for key in queries.list_keys(tenant=tenant):
            if key.name.startswith("Demo "):
                operations.revoke_key(tenant=tenant, key_id=key.id, actor=ACTOR, now=now)
        users = [_person(tenant, house, person, now) for person in house.people]
        _policies(tenant, now)
        return {"name": house.name, "users": users, "keys": _keys(tenant, now)}


def _policies(tenant: UUID, now: datetime) -> None:
    """Adjustments of books above a limit wait for an approver."""
    from approvals import rules
    from approvals.operations import policies
    from approvals.queries import policies as queries

    if any(policy.name == "adjustments" for policy in queries.list_policies(tenant=tenant)):
        return
    definition = rules.Rules(
        match=rules.Match(tools=["post_adjustments"], side_effects=["irreversible"], amount_over={"INR": "100000.00"}),
        groups=[rules.Group(name="finance", role="approver")],
        risk=[
            rules.RiskRule(
                name="large-adjustment", level="critical", when=rules.Conditions(amount_over={"INR": "1000000.00"})
            )
        ],
        reminders=[24 * 3600.0, 3600.0],
        escalation=[rules.Escalation(after_seconds=48 * 3600.0, role="admin")],
        step_up_at="critical",
    )
    policies.create_policy(tenant=tenant, name="adjustments", priority=0, definition=definition, actor=ACTOR, now=now)


def _person(tenant: UUID, house: House, person: Person, now: datetime) -> dict[str, Any]:
    """A user with a new password, and a member with the person's roles."""
    from tenancy import operations
    from tenancy.models import User

    email, password = house.email(person), secrets.token_urlsafe(12)
    user = User.objects.filter(email=email).first()
    if user is None:
        user = operations.create_user(email=email, password=password, name=person.name, now=now)
        operations.add_member(tenant=tenant, user=user, roles=person.roles, actor=ACTOR, now=now)
    else:
        user.set_password(password)
        user.save(update_fields=["password"])
    return {"email": email, "password": password, "name": person.name, "roles": list(person.roles)}


def _keys(tenant: UUID, now: datetime) -> dict[str, str]:
    from tenancy import operations, queries

    agent = queries.list_agents(tenant=tenant)[0]
    kinds = {
        "agent": (
            "runs:read",
            "runs:write",
            "work:claim",
            "effects:write",
            "tools:read",
            "artifacts:read",
            "artifacts:write",
        ),
        "operator": ("runs:read", "runs:operate", "projects:read", "members:read", "audit:read"),
        "admin": queries.SCOPES,
    }
    return {
        kind: operations.issue_key(
            tenant=tenant,
            name=f"Demo {kind}",
            scopes=scopes,
            agent_id=agent.id if kind == "agent" else None,
            actor=ACTOR,
            now=now,
        ).secret
        for kind, scopes in kinds.items()
    }


if __name__ == "__main__":
    django.setup()
    main()
