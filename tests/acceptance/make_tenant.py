"""Creates a tenant with an agent's key in the database of the environment, and prints the key. Further arguments: more scopes."""

import sys

import django


def main(slug: str, *more: str) -> str:
    django.setup()
    from kernel import actor, clock, context, ids
    from tenancy import operations

    tenant, system, now = ids.uuid7(), actor.system("test"), clock.now()
    scopes = ["runs:read", "runs:write", "work:claim", *more]
    with context.tenant_scope(tenant):
        operations.create_tenant(tenant=tenant, slug=slug, name=slug.title(), actor=system, now=now)
        operations.create_project(tenant=tenant, slug="default", name="Default", actor=system, now=now)
        return operations.issue_key(tenant=tenant, name="agent", scopes=scopes, actor=system, now=now).secret


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
