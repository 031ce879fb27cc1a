"""Creates the tenant of the chaos in the database of the environment, and prints its id and keys as JSON."""

import json

import django


def main() -> None:
    django.setup()
    from kernel import actor, clock, context, ids
    from tenancy import operations
    from tenancy.queries import SCOPES

    tenant, system, now = ids.uuid7(), actor.system("test"), clock.now()
    agent = {"runs:read", "runs:write", "work:claim", "effects:write", "artifacts:read", "artifacts:write"}
    keys: dict[str, list[str]] = {"agent": [scope for scope in SCOPES if scope in agent], "operator": list(SCOPES)}
    with context.tenant_scope(tenant):
        operations.create_tenant(tenant=tenant, slug="chaos", name="Chaos", actor=system, now=now)
        operations.create_project(tenant=tenant, slug="default", name="Default", actor=system, now=now)
        secrets = {
            name: operations.issue_key(tenant=tenant, name=name, scopes=scopes, actor=system, now=now).secret
            for name, scopes in keys.items()
        }
    print(json.dumps({"tenant": str(tenant), **secrets}))


if __name__ == "__main__":
    main()
