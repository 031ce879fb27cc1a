"""API keys for the REST framework."""

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from tenancy import auth
from tenancy.queries import Principal


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer smr_…`, and nothing else: no sessions, no cookies. There is no anonymous caller."""

    def authenticate(self, request: Request) -> tuple[Principal, None]:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        if request.method not in ("GET", "HEAD"):
            # A write asks the database, so that a key revoked a second ago changes nothing.
            auth.forget(header)
        return auth.authenticate(header), None

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="smriti"'
