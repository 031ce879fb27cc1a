"""What every REST view shares, tried on real routes: idempotency, conditions, pages, limits of a body, request ids."""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import orjson
import pytest
import time_machine

from kernel import clock
from kernel.context import tenant_scope
from kernel.rest import idempotency, ratelimit
from kernel.rest.idempotency import Answer, Call, InProgress
from kernel.rest.models import IdempotencyRecord

if TYPE_CHECKING:
    from tests.cast import House

Open = Callable[[str | None], httpx.Client]
KEY = {"name": "robot", "scopes": ["runs:read"]}


@pytest.fixture
def house() -> "House":
    from tests.cast import make_house

    return make_house("Rest", roles=("owner", "viewer"))


@pytest.fixture
def admin(house: "House", api: Open) -> httpx.Client:
    return api(house.keys["admin"])


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    found: dict[str, Any] = response.json()
    assert (found["code"], found["status"]) == (code, status)
    return found


class TestIdempotency:
    def test_same_key_same_body_same_answer_once(self, admin: httpx.Client) -> None:
        first = admin.post("/projects", json={"slug": "p", "name": "P"}, headers={"Idempotency-Key": "k-1"})
        again = admin.post("/projects", json={"slug": "p", "name": "P"}, headers={"Idempotency-Key": "k-1"})
        assert (first.status_code, again.status_code) == (201, 201)
        assert first.content == again.content
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        assert [row["slug"] for row in admin.get("/projects").json()["items"]] == ["main", "p"]

    def test_another_body_path_or_method_is_refused(self, admin: httpx.Client) -> None:
        headers = {"Idempotency-Key": "k-2"}
        assert admin.post("/projects", json={"slug": "p", "name": "P"}, headers=headers).status_code == 201
        for path, body in (("/projects", {"slug": "q", "name": "P"}), ("/agents", {"slug": "p", "name": "P"})):
            problem(admin.post(path, json=body, headers=headers), 422, "idempotency_key_reused")

    def test_a_secret_is_neither_kept_nor_repeated(self, admin: httpx.Client, house: "House") -> None:
        first = admin.post("/keys", json=KEY, headers={"Idempotency-Key": "k-3"})
        again = admin.post("/keys", json=KEY, headers={"Idempotency-Key": "k-3"})
        assert first.json()["secret"].startswith("smr_")
        assert again.json() == {**first.json(), "secret": None}
        assert again.headers["location"] == first.headers["location"]
        assert len(admin.get("/keys").json()["items"]) == len(house.keys) + 1

    def test_a_key_belongs_to_who_used_it(self, admin: httpx.Client, api: Open) -> None:
        other = admin.post("/keys", json={"name": "second", "scopes": ["projects:read", "projects:write"]}).json()[
            "secret"
        ]
        headers = {"Idempotency-Key": "k-4"}
        assert admin.post("/projects", json={"slug": "a", "name": "A"}, headers=headers).status_code == 201
        assert api(other).post("/projects", json={"slug": "b", "name": "B"}, headers=headers).status_code == 201

    def test_a_refused_request_is_judged_anew(self, admin: httpx.Client) -> None:
        headers = {"Idempotency-Key": "k-5"}
        problem(admin.post("/projects", json={"slug": "main", "name": "M"}, headers=headers), 409, "slug_taken")
        assert admin.post("/projects", json={"slug": "other", "name": "M"}, headers=headers).status_code == 201

    @pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
    def test_a_malformed_key_is_refused(self, admin: httpx.Client, key: str) -> None:
        found = problem(admin.post("/projects", json={"slug": "p", "name": "P"}, headers={"Idempotency-Key": key}), 400,
                        "idempotency_key_required")  # fmt: skip
        assert found["errors"][0]["path"] == "Idempotency-Key"

    def test_nothing_of_the_request_stands_in_clear(self, admin: httpx.Client, house: "House") -> None:
        admin.post("/projects", json={"slug": "veiled", "name": "Veiled"}, headers={"Idempotency-Key": "invoice-77"})
        with tenant_scope(house.id):
            [record] = IdempotencyRecord.objects.all()
        stored = bytes(record.answer) + bytes(record.request) + record.id.bytes
        assert b"eiled" not in stored
        assert b"invoice" not in stored

    def test_expires_after_a_day_and_is_swept(self, admin: httpx.Client, house: "House") -> None:
        headers = {"Idempotency-Key": "k-6"}
        with time_machine.travel(clock.now() - idempotency.KEEP, tick=True):
            assert admin.post("/projects", json={"slug": "p", "name": "P"}, headers=headers).status_code == 201
        assert admin.post("/projects", json={"slug": "q", "name": "P"}, headers=headers).status_code == 201
        with tenant_scope(house.id):
            assert IdempotencyRecord.objects.count() == 1

    def test_says_when_the_first_request_is_still_running(self, house: "House") -> None:
        call = Call(house.id, house.key_ids["admin"], "k-7", "POST", "/x", b"{}")
        running, refused = threading.Event(), threading.Event()

        def slow() -> Answer:
            running.set()
            assert refused.wait(10)
            return Answer(200, b"{}")

        def first() -> None:
            from django.db import connection

            with tenant_scope(house.id):
                idempotency.once(call, slow, now=clock.now())
            connection.close()

        thread = threading.Thread(target=first)
        thread.start()
        assert running.wait(10)
        with pytest.raises(InProgress) as caught, tenant_scope(house.id):
            idempotency.once(call, slow, now=clock.now())
        refused.set()
        thread.join()
        assert caught.value.headers == {"Retry-After": "1"}


class TestConditions:
    def test_a_reader_who_has_it_gets_304(self, admin: httpx.Client, house: "House") -> None:
        path = f"/members/{house.members['viewer']}"
        tag = admin.get(path).headers["etag"]
        for sent in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            response = admin.get(path, headers={"If-None-Match": sent})
            assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", tag)
        assert admin.get(path, headers={"If-None-Match": '"x"'}).status_code == 200

    def test_a_writer_with_a_stale_tag_is_refused(self, admin: httpx.Client, house: "House") -> None:
        path = f"/members/{house.members['viewer']}"
        tag = admin.get(path).headers["etag"]
        first = admin.put(f"{path}/roles", json={"roles": ["auditor"]}, headers={"If-Match": tag})
        assert (first.status_code, first.json()["roles"]) == (200, ["auditor"])
        problem(
            admin.put(f"{path}/roles", json={"roles": ["admin"]}, headers={"If-Match": tag}), 412, "precondition_failed"
        )
        problem(admin.delete(path, headers={"If-Match": tag}), 412, "precondition_failed")
        assert admin.put(
            f"{path}/roles", json={"roles": ["admin"]}, headers={"If-Match": first.headers["etag"]}
        ).is_success
        assert admin.delete(path, headers={"If-Match": "*"}).status_code == 204


class TestPages:
    def test_cursors_visit_every_row_once_in_a_stable_order(self, admin: httpx.Client) -> None:
        for number in range(7):
            admin.post("/agents", json={"slug": f"a{number}", "name": f"A{number}"}).raise_for_status()
        seen, cursor = [], None
        while True:
            page = admin.get("/agents", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
            seen += [row["slug"] for row in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
            assert len(page["items"]) == 3
        assert seen == ["clerk", *(f"a{number}" for number in range(7))]

    @pytest.mark.parametrize(
        ("query", "name", "code"),
        [
            ("limit=0", "limit", "out_of_range"),
            ("limit=201", "limit", "out_of_range"),
            ("limit=x", "limit", "wrong_type"),
            ("cursor=x", "cursor", "wrong_format"),
            ("page=2", "page", "unknown_field"),
            ("limit=1&limit=2", "limit", "repeated"),
            ("cursor=%00", "cursor", "nul_character"),
            ("%00=1", "\ufffd", "unknown_field"),
        ],
    )
    def test_odd_parameters_are_refused_by_name(self, admin: httpx.Client, query: str, name: str, code: str) -> None:
        found = problem(admin.get(f"/agents?{query}"), 422, "invalid")
        [error] = found["errors"]
        assert (error["path"], error["code"]) == (name, code)


class TestRequests:
    @pytest.mark.parametrize(
        ("headers", "status", "code"),
        [
            ({}, 415, "unsupported_media_type"),
            ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
            ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
            ({"Content-Type": "application/json; charset=latin-1"}, 415, "unsupported_media_type"),
            ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
            ({"Content-Type": "application/json", "Content-Length": "99999999"}, 413, "body_too_large"),
            ({"Content-Type": "application/json", "Content-Length": "x"}, 400, "bad_request"),
        ],
    )
    def test_other_bodies_are_refused(
        self, admin: httpx.Client, headers: dict[str, str], status: int, code: str
    ) -> None:
        problem(admin.post("/projects", content=b'{"slug": "p", "name": "P"}', headers=headers), status, code)

    def test_charset_utf8_is_accepted(self, admin: httpx.Client) -> None:
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        body = orjson.dumps({"slug": "p", "name": "परियोजना"})
        assert admin.post("/projects", content=body, headers=headers).json()["name"] == "परियोजना"

    def test_a_body_where_none_is_read_is_refused(self, admin: httpx.Client, house: "House") -> None:
        problem(admin.post(f"/keys/{house.key_ids['agent']}/revoke", json={"force": True}), 400, "bad_request")

    def test_request_ids(self, admin: httpx.Client) -> None:
        assert admin.get("/agents", headers={"X-Request-Id": "trace-12345"}).headers["x-request-id"] == "trace-12345"
        for odd in ("short", "x" * 65, "a b c d e f g h"):
            assert UUID(admin.get("/agents", headers={"X-Request-Id": odd}).headers["x-request-id"]).version == 7

    def test_methods_that_do_not_exist(self, admin: httpx.Client) -> None:
        response = admin.request("OPTIONS", "/keys")
        problem(response, 405, "method_not_allowed")
        assert response.headers["allow"] == "GET, HEAD, POST"
        assert admin.head("/keys").status_code == 200

    def test_paths_that_do_not_exist(self, admin: httpx.Client) -> None:
        problem(admin.get("/nothing"), 404, "not_found")
        problem(admin.get("/keys/not-a-uuid"), 404, "not_found")

    def test_no_key_no_answer(self, api: Open) -> None:
        response = api(None).get("/keys")
        problem(response, 401, "unauthorized")
        assert response.headers["www-authenticate"] == 'Bearer realm="smriti"'

    def test_a_revoked_key_writes_nothing_more(self, admin: httpx.Client, api: Open) -> None:
        issued = admin.post("/keys", json={"name": "k", "scopes": ["projects:read", "projects:write"]}).json()
        robot = api(issued["secret"])
        assert robot.get("/projects").status_code == 200
        admin.post(f"/keys/{issued['key']['id']}/revoke").raise_for_status()
        problem(robot.post("/projects", json={"slug": "p", "name": "P"}), 401, "unauthorized")

    def test_scopes_are_asked_for_by_name(self, house: "House", api: Open) -> None:
        assert problem(api(house.keys["agent"]).get("/keys"), 403, "forbidden")["required"] == "keys:read"


class TestRateLimit:
    @pytest.fixture(autouse=True)
    def fresh(self) -> Iterator[None]:
        ratelimit.forget()
        yield
        ratelimit.forget()

    def test_counts_down_and_refuses(self, admin: httpx.Client, settings: object) -> None:
        settings.RATE_LIMIT = 30  # type: ignore[attr-defined]
        with time_machine.travel(0, tick=False):
            first = admin.get("/agents")
        assert first.headers["ratelimit-policy"] == '"key";q=30;w=60'
        assert first.headers["ratelimit"].startswith('"key";r=29;t=')
        answers = [admin.get("/agents") for _ in range(40)]
        refused = next(answer for answer in answers if answer.status_code != 200)
        problem(refused, 429, "rate_limited")
        assert int(refused.headers["retry-after"]) >= 1
        assert sum(answer.status_code == 200 for answer in answers) < 36

    def test_fails_open(self, admin: httpx.Client, settings: object) -> None:
        settings.BROKER_URL = "redis://127.0.0.1:1/0"  # type: ignore[attr-defined]
        settings.RATE_LIMIT = 1  # type: ignore[attr-defined]
        answers = [admin.get("/agents") for _ in range(5)]
        assert all(answer.status_code == 200 and "ratelimit" not in answer.headers for answer in answers)
