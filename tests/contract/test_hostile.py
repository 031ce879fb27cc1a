"""Hostile values through every write route: a 4xx problem that names the place, or stored and returned exactly."""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kernel.errors import CODES
from kernel.rest.docs import document
from tests.contract import parts

if TYPE_CHECKING:
    from tests.contract.calls import Desk

MB = 1_000_000
NAMES = parts.WRITES
# What no reader may be given, with the code of the refusal. `MARK` stands for the value in question.
UNREADABLE = {
    r'"a\u0000b"': "nul_character",
    r'"\ud800"': "lone_surrogate",
    r'"\udc00\ud800"': "lone_surrogate",
    r'{"\udfff": 1}': "lone_surrogate",
    r'{"a\u0000": 1}': "nul_character",
    "NaN": "number_not_finite",
    "-Infinity": "number_not_finite",
    "1e400": "number_not_finite",
    "1180591620717411303424": "integer_out_of_range",
    "-9007199254740992": "integer_out_of_range",
    '{"a": 1, "a": 1}': "duplicate_key",
    "[" * 10_000 + "]" * 10_000: "too_deep",
    '{"a":' * 10_000 + "1" + "}" * 10_000: "too_deep",
    "nul": "invalid_json",
    "01": "invalid_json",
    '"\x01"': "invalid_json",
}
# Sound JSON that is odd for most fields.
ODD = (
    "null",
    "true",
    "0",
    "-0",
    "-0.0",
    "1.5",
    "1e20",
    '""',
    '"\\ud83d\\ude00 \\u202e"',
    "[]",
    "{}",
    '"' + "x" * 5000 + '"',
    "[[]]",
)


@pytest.fixture
def desk() -> "Iterator[Desk]":
    from tests.contract.calls import Desk

    found = Desk()
    yield found
    found.close()


def refusal(response: httpx.Response, *statuses: int) -> dict[str, Any]:
    """A problem with a stable code and, where a value is at fault, its place."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    assert 400 <= response.status_code < 500, response.text
    problem: dict[str, Any] = response.json()
    assert problem["status"] == response.status_code
    assert CODES[problem["code"]].status == response.status_code
    assert problem["type"].endswith(f"/problems/{problem['code']}")
    assert not statuses or response.status_code in statuses, response.text
    for error in problem.get("errors", ()):
        assert {"path", "code", "message"} <= set(error)
        assert re.fullmatch(r"(/[^/]*)*|Idempotency-Key", error["path"])
    return problem


@pytest.mark.parametrize("name", NAMES)
def test_bodies_that_are_no_json(desk: "Desk", name: str) -> None:
    write = desk.writes()[name]
    good = json.dumps(write.body).encode()
    bodies = {
        b"": "empty_body",
        b" \n ": "empty_body",
        b"\xef\xbb\xbf" + good: "invalid_encoding",
        good[:-1] + b', "\xff": 1}': "invalid_encoding",
        good.decode().encode("utf-16"): "invalid_encoding",
        good + b"x": "invalid_json",
        good[:-1]: "invalid_json",
        b"{'a': 1}": "invalid_json",
        b"[" * 10_000: "too_deep",
        good[:-1] + b", " + good[1:]: "duplicate_key",
    }
    for body, code in bodies.items():
        assert refusal(desk.send(write, body))["code"] == code, body[:60]
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
    ):
        assert refusal(desk.send(write, good, **{"Content-Type": kind}))["code"] == "unsupported_media_type"
    assert refusal(desk.send(write, good, **{"Content-Encoding": "gzip"}))["code"] == "unsupported_media_type"


@pytest.mark.parametrize("name", NAMES)
def test_fifty_megabytes(desk: "Desk", name: str) -> None:
    write = desk.writes()[name]
    problem = refusal(desk.send(write, b'{"a": "' + b"x" * 50 * MB + b'"}'))
    assert (problem["code"], problem["status"]) == ("body_too_large", 413)
    assert 0 < problem["limit"] < 50 * MB


@pytest.mark.parametrize("name", NAMES)
def test_values_that_nobody_may_read_are_refused_at_their_place(desk: "Desk", name: str) -> None:
    write = desk.writes()[name]
    for pointer in parts.places(write.body):
        for text, code in UNREADABLE.items():
            body = parts.put(write.body, pointer, text)
            problem = refusal(desk.send(write, body))
            if problem["code"] == "body_too_large":
                assert len(body) > problem["limit"]
                continue
            assert problem["code"] == code, (pointer, text[:40])
            [error] = problem["errors"]
            assert error["path"].startswith(pointer), (error["path"], pointer)


@pytest.mark.parametrize("name", NAMES)
def test_odd_values_are_refused_at_their_place_or_taken(desk: "Desk", name: str) -> None:
    write = desk.writes()[name]
    for pointer in parts.places(write.body):
        for text in ODD:
            response = desk.send(write, parts.put(write.body, pointer, text))
            if response.is_success:
                continue
            problem = refusal(response)
            if problem["status"] == 422:
                assert any(parts.related(error["path"], pointer) for error in problem["errors"]), (
                    pointer,
                    text,
                    problem,
                )


@pytest.mark.parametrize("name", NAMES)
def test_unknown_fields_are_refused_by_name(desk: "Desk", name: str) -> None:
    write = desk.writes()[name]
    for pointer in parts.objects(write.body):
        if any(pointer.startswith(free) for free in write.free) or pointer.startswith("/checkpoint/state"):
            continue
        problem = refusal(desk.send(write, parts.add(write.body, pointer, "surprise")), 422)
        [error] = problem["errors"]
        if not pointer.endswith(("/labels", "/versions")):
            assert (error["path"], error["code"]) == (f"{pointer}/surprise", "unknown_field")


@pytest.mark.parametrize("name", NAMES)
def test_missing_fields_are_named(desk: "Desk", name: str) -> None:
    write = desk.writes()[name]
    for pointer in parts.members(write.body):
        if any(pointer.startswith(free) for free in write.free) or pointer.startswith("/checkpoint/state/"):
            continue
        response = desk.send(write, parts.drop(write.body, pointer))
        if not response.is_success:
            problem = refusal(response)
            if problem["status"] == 422:
                assert any(parts.related(error["path"], pointer) for error in problem["errors"]), (pointer, problem)


@pytest.mark.parametrize("name", parts.BODILESS)
def test_writes_without_a_body_take_none(desk: "Desk", name: str) -> None:
    from tests.contract.calls import Write

    method, path = name.split()
    for body in (b"{}", b"\xff", b"[" * 10_000, b"x" * 50 * MB):
        refusal(desk.send(Write(method, path, None), body), 400, 413)


@pytest.mark.parametrize("name", NAMES)
def test_odd_headers(desk: "Desk", name: str) -> None:
    write = desk.writes()[name]
    good = json.dumps(write.body).encode()
    # A heartbeat keeps no answers: repeating it is harmless.
    for key in () if name.endswith("/heartbeat") else ("", "k" * 256, "a\tb"):
        assert refusal(desk.send(write, good, **{"Idempotency-Key": key}), 400, 422)
    for header in ("Bearer", "Bearer smr_", "Basic eDp5", "Bearer " + "x" * 5000, 'Bearer smr_x"\\'):
        assert refusal(desk.send(write, good, Authorization=header))["status"] == 401


def test_every_write_route_is_tried() -> None:
    paths = json.loads(document())["paths"]
    found = {
        f"{method.upper()} {path.removeprefix('/api/v1/')}": "requestBody" in operation
        for path, operations in paths.items()
        for method, operation in operations.items()
        if method != "get"
    }
    assert {name for name, has_body in found.items() if has_body} == set(parts.WRITES)
    assert {name for name, has_body in found.items() if not has_body} == set(parts.BODILESS)


# Payloads come back to the letter: digits, signs, escapes and the order of keys.
LETTERS = (
    '{"zero": -0.0, "minus": -0, "long": 0.1000000000000000055511151231257827, "money": 1.10, "big": 9007199254740991, '
    '"e": 1E+2, "tiny": 5e-324, "far": 1e-400, "hindi": "\\u0928\\u092e\\u0938\\u094d\\u0924\\u0947 नमस्ते", '
    '"emoji": "\\ud83d\\ude00", "slash": "\\/", "b": 1, "a": 2, "empty": {}, "line": "\\u2028", "n": null}'
)


def digits(text: str) -> Any:
    """JSON with its numbers as they are written, and objects in their order."""
    return json.loads(text, parse_float=str, parse_int=str, object_pairs_hook=list)


def member(text: str, *way: str | int) -> Any:
    value = digits(text)
    for name in way:
        value = value[name] if isinstance(name, int) else dict(value)[name]
    return value


def test_payloads_come_back_to_the_letter(desk: "Desk") -> None:
    agent = desk.clients["agent"]
    run = f'{{"workflow": "w", "workflow_version": "1", "steps": [{{"name": "a", "queue": "q"}}], "input": {LETTERS}}}'
    run_id = desk.send(desk.writes()["POST runs"], run.encode()).json()["id"]
    claimed = agent.post("work/claim", json={"worker": "w", "queues": ["q"]})
    assert member(claimed.text, "run", "input") == digits(LETTERS)
    work = claimed.json()
    body = (
        f'{{"lease": "{work["lease"]}", "epoch": {work["epoch"]}, "head": {work["run"]["head"]}, '
        f'"events": [{{"type": "note", "input": {LETTERS}, "output": {LETTERS}, "payload": [{LETTERS}]}}], '
        f'"checkpoint": {{"state": {{"x": {LETTERS}}}}}}}'
    )
    headers = {"Content-Type": "application/json", "Idempotency-Key": "letters"}
    assert agent.post(f"runs/{run_id}/commit", content=body.encode(), headers=headers).status_code == 200
    events = agent.get(f"runs/{run_id}/events")
    [position] = [place for place, event in enumerate(events.json()["items"]) if event["type"] == "note"]
    for name in ("input", "output"):
        assert member(events.text, "items", position, name) == digits(LETTERS)
    assert member(events.text, "items", position, "payload", 0) == digits(LETTERS)
    assert member(agent.get(f"runs/{run_id}/checkpoints/latest").text, "state", "x") == digits(LETTERS)


@pytest.mark.parametrize(
    "text", ["नमस्ते", "😀", "a\u202eb", "\u00e9 e\u0301", "<script>", "a  b", "'; drop table --", "\ufffe"]
)
def test_texts_come_back_to_the_letter(desk: "Desk", text: str) -> None:
    admin = desk.clients["admin"]
    for path in ("projects", "agents"):
        assert admin.post(path, json={"slug": "text", "name": text}).json()["name"] == text
        assert text in [row["name"] for row in admin.get(path).json()["items"]]
    key = admin.post("keys", json={"name": text, "scopes": ["runs:read"]}).json()["key"]
    assert admin.get(f"keys/{key['id']}").json()["name"] == text
    assert admin.post(f"runs/{desk.run_id}/cancel", json={"reason": text}).status_code == 204
    assert text in json.dumps(admin.get("audit", params={"action": "run."}).json(), ensure_ascii=False)


@pytest.mark.parametrize("text", [" a", "a ", "\ta", "a\n", " "])
def test_texts_that_would_be_changed_are_refused(desk: "Desk", text: str) -> None:
    for write in (desk.writes()[name] for name in ("POST projects", "POST agents", "POST keys")):
        problem = refusal(desk.send(write, json.dumps(write.body | {"name": text}).encode()), 422)
        assert [error["path"] for error in problem["errors"]] == ["/name"]


def test_times_come_back_to_the_microsecond_or_are_refused(desk: "Desk") -> None:
    from tests.contract.calls import Write

    write = Write("POST", "runs/{run_id}/commit", None, key="agent")

    def send(text: str) -> httpx.Response:
        return desk.send(write, json.dumps({"events": [{"type": "note", "occurred_at": text}]}).encode())

    for text in ("2026-01-31T09:30:00.123456Z", "1900-01-01T00:00:00Z", "2199-12-31T23:59:59.999999Z"):
        assert send(text).status_code == 200
        last = desk.clients["agent"].get(f"runs/{desk.run_id}/events").json()["items"][-1]
        assert last["occurred_at"] == text
    for text in ("2026-01-31T09:30:00.1234567Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-01-31T09:30:00"):
        [error] = refusal(send(text), 422)["errors"]
        assert error["path"] == "/events/0/occurred_at"
