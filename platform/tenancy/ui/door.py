"""Lets members in: the signed-in user's memberships decide, on every request, so that a removed member is out at once."""

from django.http import HttpRequest

from kernel.web.door import Place, Visitor
from tenancy import queries
from tenancy.ui.words import ROLES


def role_words(roles: frozenset[str]) -> tuple[str, ...]:
    """In the order of power, in the reader's language."""
    return tuple(str(word) for role, word in ROLES.items() if role in roles)


def enter(request: HttpRequest, slug: str) -> Visitor | None:
    user = request.user
    assert user.is_authenticated
    memberships = queries.memberships_of(user.id)
    membership = next((found for found in memberships if found.slug == slug), None)
    if membership is None:
        return None
    principal = queries.member_principal(membership, user_id=user.id)
    return Visitor(
        tenant_id=membership.tenant_id,
        slug=membership.slug,
        tenant_name=membership.name,
        member_id=membership.member_id,
        name=membership.member_name,
        roles=role_words(membership.roles),
        actions=principal.actions,
        places=tuple(Place(m.slug, m.name, role_words(m.roles)) for m in memberships),
    )
