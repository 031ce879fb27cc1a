"""Projects, agents, members and API keys over REST."""

from datetime import timedelta
from uuid import UUID

from kernel.rest.pages import PageQuery, page
from kernel.rest.views import ApiView, Context, Created, endpoint
from tenancy import operations, queries
from tenancy.api import wire
from tenancy.operations import KeyNotActive, LastOwner, ScopeTooWide, SlugTaken


class Projects(ApiView):
    @endpoint(summary="List projects", scope="projects:read", query=PageQuery, answer=wire.NamedPage)
    def get(self, call: Context) -> wire.NamedPage:
        """In order of creation. A key that is bound to projects sees those."""
        bound = call.principal.project_ids
        rows = [row for row in queries.list_projects(tenant=call.tenant) if bound is None or row.id in bound]
        shown = page(rows, query=call.query, key=lambda row: row.id)
        return wire.NamedPage(items=[wire.named(row) for row in shown.rows], next_cursor=shown.next_cursor)

    @endpoint(
        summary="Create a project",
        scope="projects:write",
        body=wire.NamedIn,
        answer=wire.NamedOut,
        status=201,
        problems=(SlugTaken,),
    )
    def post(self, call: Context) -> wire.NamedOut:
        return wire.named(
            operations.create_project(
                tenant=call.tenant, slug=call.body.slug, name=call.body.name, actor=call.actor, now=call.now
            )
        )


class Agents(ApiView):
    @endpoint(summary="List agents", scope="projects:read", query=PageQuery, answer=wire.NamedPage)
    def get(self, call: Context) -> wire.NamedPage:
        """In order of registration."""
        shown = page(queries.list_agents(tenant=call.tenant), query=call.query, key=lambda row: row.id)
        return wire.NamedPage(items=[wire.named(row) for row in shown.rows], next_cursor=shown.next_cursor)

    @endpoint(
        summary="Register an agent",
        scope="projects:write",
        body=wire.AgentIn,
        answer=wire.NamedOut,
        status=201,
        problems=(SlugTaken,),
    )
    def post(self, call: Context) -> wire.NamedOut:
        return wire.named(
            operations.register_agent(
                tenant=call.tenant,
                slug=call.body.slug,
                name=call.body.name,
                owner_id=call.body.owner_id,
                actor=call.actor,
                now=call.now,
            )
        )


class Members(ApiView):
    @endpoint(summary="List members", scope="members:read", query=PageQuery, answer=wire.MemberPage)
    def get(self, call: Context) -> wire.MemberPage:
        """In order of joining."""
        shown = page(queries.list_members(tenant=call.tenant), query=call.query, key=lambda row: row.id)
        return wire.MemberPage(items=[wire.member(row) for row in shown.rows], next_cursor=shown.next_cursor)


class Member(ApiView):
    @endpoint(summary="Read a member", scope="members:read", answer=wire.MemberOut, conditional=True)
    def get(self, call: Context, member_id: UUID) -> wire.MemberOut:
        return wire.member(queries.get_member(tenant=call.tenant, member_id=member_id))

    @endpoint(summary="End a membership", scope="members:write", status=204, conditional=True, problems=(LastOwner,))
    def delete(self, call: Context, member_id: UUID) -> None:
        """The person's sign-in stays. A tenant always keeps an owner."""
        call.require_match(lambda: wire.member(queries.get_member(tenant=call.tenant, member_id=member_id)))
        operations.remove_member(tenant=call.tenant, member_id=member_id, actor=call.actor, now=call.now)


class MemberRoles(ApiView):
    @endpoint(
        summary="Replace a member's roles",
        scope="members:write",
        body=wire.RolesIn,
        answer=wire.MemberOut,
        conditional=True,
        problems=(LastOwner, ScopeTooWide),
    )
    def put(self, call: Context, member_id: UUID) -> wire.MemberOut:
        """If-Match takes the ETag of the member. A tenant always keeps an owner."""
        call.require_match(lambda: wire.member(queries.get_member(tenant=call.tenant, member_id=member_id)))
        return wire.member(
            operations.change_roles(
                tenant=call.tenant,
                member_id=member_id,
                roles=call.body.roles,
                within=call.principal.actions,
                actor=call.actor,
                now=call.now,
            )
        )


class Keys(ApiView):
    @endpoint(summary="List API keys", scope="keys:read", query=PageQuery, answer=wire.KeyPage)
    def get(self, call: Context) -> wire.KeyPage:
        """In order of issue, revoked and expired ones too."""
        shown = page(queries.list_keys(tenant=call.tenant), query=call.query, key=lambda row: row.id)
        return wire.KeyPage(items=[wire.key(row) for row in shown.rows], next_cursor=shown.next_cursor)

    @endpoint(
        summary="Issue an API key",
        scope="keys:write",
        body=wire.KeyIn,
        answer=wire.IssuedOut,
        status=201,
        secrets=("secret",),
        problems=(ScopeTooWide,),
    )
    def post(self, call: Context) -> Created:
        """Its secret is in this answer and nowhere else. A key cannot give what it may not do itself."""
        issued = operations.issue_key(
            tenant=call.tenant,
            name=call.body.name,
            scopes=call.body.scopes,
            agent_id=call.body.agent_id,
            project_ids=call.body.project_ids,
            expires_at=call.body.expires_at,
            within=call.principal.actions,
            actor=call.actor,
            now=call.now,
        )
        return _issued(issued)


class Key(ApiView):
    @endpoint(summary="Read an API key", scope="keys:read", answer=wire.KeyOut, conditional=True)
    def get(self, call: Context, key_id: UUID) -> wire.KeyOut:
        return wire.key(queries.get_key(tenant=call.tenant, key_id=key_id))


class KeyRotation(ApiView):
    @endpoint(
        summary="Rotate an API key",
        scope="keys:write",
        body=wire.RotateIn,
        answer=wire.IssuedOut,
        status=201,
        secrets=("secret",),
        problems=(ScopeTooWide, KeyNotActive),
    )
    def post(self, call: Context, key_id: UUID) -> Created:
        """A successor with the same powers; the old key goes on for the overlap."""
        issued = operations.rotate_key(
            tenant=call.tenant,
            key_id=key_id,
            overlap=timedelta(seconds=call.body.overlap_seconds),
            within=call.principal.actions,
            actor=call.actor,
            now=call.now,
        )
        return _issued(issued)


class KeyRevocation(ApiView):
    @endpoint(summary="Revoke an API key", scope="keys:write", answer=wire.KeyOut)
    def post(self, call: Context, key_id: UUID) -> wire.KeyOut:
        """It ends at once. Revoking a revoked key changes nothing."""
        return wire.key(operations.revoke_key(tenant=call.tenant, key_id=key_id, actor=call.actor, now=call.now))


def _issued(issued: operations.IssuedKey) -> Created:
    answer = wire.IssuedOut(key=wire.key(issued.key), secret=issued.secret)
    return Created(answer, location=f"/api/v1/keys/{issued.key.id}")
