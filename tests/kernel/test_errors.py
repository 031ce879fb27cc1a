"""Every exception becomes a problem with a stable code, and none tells internals."""

import orjson
import psycopg
import pytest
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import IntegrityError, OperationalError
from django.http import Http404

from kernel import clock, errors
from kernel.context import tenant_scope
from kernel.errors import DomainError, FieldError
from kernel.ids import uuid7
from tenancy.models import Member


class Taken(DomainError):
    code = "test_taken"
    status = 409
    title = "Taken"


def test_a_problem_has_the_members_of_rfc_9457() -> None:
    fields = (FieldError("/name", "taken", "Taken.", 3),)
    error = Taken("The name is taken.", hint="Choose another.", fields=fields, extra={"since": 4, "status": 1})
    assert errors.problem(error, instance="/api/v1/x") == {
        "type": "http://testserver/problems/test_taken",
        "title": "Taken",
        "status": 409,
        "detail": "The name is taken.",
        "code": "test_taken",
        "hint": "Choose another.",
        "instance": "/api/v1/x",
        "errors": [{"path": "/name", "code": "taken", "message": "Taken.", "limit": 3}],
        "since": 4,
    }


def test_a_response_carries_status_type_and_headers() -> None:
    response = errors.respond(errors.Unavailable())
    assert (response.status_code, response["Content-Type"], response["Retry-After"]) == (
        503,
        "application/problem+json",
        "1",
    )
    assert orjson.loads(response.content)["code"] == "unavailable"


def test_a_code_is_of_one_class() -> None:
    with pytest.raises(TypeError, match="test_taken"):
        type("Other", (DomainError,), {"code": "test_taken", "status": 409, "title": "Taken"})


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (Http404("secret"), "not_found", 404),
        (PermissionDenied("secret"), "forbidden", 403),
        (RequestDataTooBig("secret"), "body_too_large", 413),
        (SuspiciousOperation("secret"), "bad_request", 400),
        (psycopg.OperationalError("secret"), "unavailable", 503),
        (psycopg.errors.DeadlockDetected("secret"), "unavailable", 503),
        (psycopg.errors.UndefinedTable("secret"), "internal_error", 500),
        (OperationalError("secret"), "internal_error", 500),
        (ValueError("secret"), "internal_error", 500),
    ],
)
def test_foreign_exceptions_become_problems_without_internals(error: Exception, code: str, status: int) -> None:
    response = errors.respond(error)
    assert (response.status_code, orjson.loads(response.content)["code"]) == (status, code)
    assert b"secret" not in response.content


@pytest.fixture
def violation() -> IntegrityError:
    """The error of a real constraint: an unknown role."""
    tenant = uuid7()
    member = Member(
        tenant_id=tenant, user_id=uuid7(), email="a@b.example", name="A", roles=["king"], created_at=clock.now()
    )
    with pytest.raises(IntegrityError) as caught, tenant_scope(tenant):
        member.save(force_insert=True)
    return caught.value


def test_a_violated_constraint_is_translated_by_its_name(
    violation: IntegrityError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_constraints", {})
    assert errors.translate(violation) is None
    assert errors.from_exception(violation).code == "internal_error"
    errors.register_constraint("tenancy_member_roles_known", Taken)
    assert isinstance(errors.translate(violation), Taken)
    assert isinstance(errors.from_exception(violation.__cause__ or violation), Taken)
    with pytest.raises(ValueError, match="tenancy_member_roles_known"):
        errors.register_constraint("tenancy_member_roles_known", errors.NotFound)


def test_half_an_answer_of_the_database_is_no_mistake_of_ours() -> None:
    assert errors.from_exception(psycopg.InternalError("unexpected result from command")).status == 503
    syntax = psycopg.errors.InternalError_("a corrupted index")
    assert errors.from_exception(syntax).status == 500
