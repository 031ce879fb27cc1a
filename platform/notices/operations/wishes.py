"""What a member wants by e-mail, and in which language."""

from collections.abc import Collection
from uuid import UUID

from django.conf import settings

from kernel import ids
from kernel.errors import FieldError, Invalid
from notices import kinds
from notices.models import Preference


def choose(*, tenant: UUID, member_id: UUID, language: str, wanted: Collection[str]) -> None:
    """Keep a member's choice. Kinds that come later are wanted until the member says otherwise. Raises Invalid."""
    mailed = {kind.name for kind in kinds.known() if kind.mailed}
    if language not in dict(settings.LANGUAGES):
        raise _invalid("language", "There is no such language here.")
    if not set(wanted) <= mailed:
        raise _invalid("wanted", "There is no such kind of notice.")
    Preference.objects.bulk_create(
        [Preference(id=ids.uuid7(), member_id=member_id, language=language, unwanted=sorted(mailed - set(wanted)))],
        update_conflicts=True,
        unique_fields=["tenant_id", "member_id"],
        update_fields=["language", "unwanted"],
    )


def _invalid(field: str, message: str) -> Invalid:
    return Invalid(message, fields=(FieldError(path=f"/{field}", code="invalid", message=message),))
