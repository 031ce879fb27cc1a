"""Pages through Django's own client: who may see what, secrets shown once, errors as pages, recorded query counts."""

import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from tests.web.conftest import CountQueries, Visit

if TYPE_CHECKING:
    from tests.browser.story import Story
    from tests.cast import Cast, House

# Pages that are looked at with a run that has effects and stopped for good.
EFFECTS = ("runs:effects", "runs:effect", "runs:effect_payload", "runs:reconcile", "runs:recover", "runs:resume")
# Routes of approvals that only take forms; tests/web/test_approvals.py sends them.
POSTED = {"decide", "act", "approver", "end_delegation"}
# Looked at, with their numbers of queries, there too.
ONE_REQUEST = (
    "approvals:request", "approvals:value", "approvals:raw", "approvals:edit", "approvals:news", "approvals:policy",
)  # fmt: skip
POLICY = {
    "default-src 'none'",
    *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "font", "connect")),
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
}


def pages(house: "House", run: Any, effect: Any = None, gate: Any = None, hook: Any = None) -> dict[str, str]:
    """Every page of a tenant that answers a GET, by name. `effect` and `gate` are of the run; None: such as do not exist."""
    effect, gate = effect or uuid4(), gate or uuid4()
    of_tenant = (
        "runs:list", "runs:attention", "runs:recover_many", "runs:queues", "runs:every_queue", "runs:tools", "runs:workflows",
        "approvals:inbox", "approvals:mine", "approvals:policies", "approvals:policy_new", "approvals:together", "audit:list",
        "tenancy:members", "tenancy:member_add", "tenancy:keys", "tenancy:key_new",
        "notices:webhooks", "notices:webhook_new", "notices:notifications",
    )  # fmt: skip
    of_run = ("runs:detail", "runs:events", "runs:state", "runs:effects", "runs:resume", "runs:cancel", "runs:recover")
    of_effect = ("runs:effect", "runs:effect_payload", "runs:reconcile")
    of_event = ("runs:event", "runs:payload", "runs:raw_payload")
    of_hook = ("notices:webhook", "notices:webhook_change", "notices:webhook_rotate", "notices:webhook_delete")
    of_member, of_key = ("tenancy:member_roles", "tenancy:member_remove"), ("tenancy:key_rotate", "tenancy:key_revoke")
    return {
        **{name: reverse(name, args=[house.slug]) for name in of_tenant},
        **{name: reverse(name, args=[house.slug, run]) for name in of_run},
        **{name: reverse(name, args=[house.slug, run, 4]) for name in of_event},
        **{name: reverse(name, args=[house.slug, run, effect]) for name in of_effect},
        **{name: reverse(name, args=[house.slug, uuid4()]) for name in ONE_REQUEST[:-1]},
        "approvals:policy": reverse("approvals:policy", args=[house.slug, uuid4()]),
        "runs:gate": reverse("runs:gate", args=[house.slug, run, gate]),
        "runs:queue": reverse("runs:queue", args=[house.slug, "ocr-gpu"]),
        "runs:tool_version": reverse("runs:tool_version", args=[house.slug, "bank.pay", "1"]),
        "runs:workflow_version": reverse("runs:workflow_version", args=[house.slug, "pay-suppliers", "7"]),
        **{name: reverse(name, args=[house.slug, house.members["viewer"]]) for name in of_member},
        **{name: reverse(name, args=[house.slug, house.key_ids["agent"]]) for name in of_key},
        **{name: reverse(name, args=[house.slug, hook or uuid4()]) for name in of_hook},
    }


def secret_of(response: Any) -> str:
    match = re.search(r'<code id="secret">([^<]+)</code>', response.content.decode())
    assert match, response.content.decode()
    return match[1]


def test_every_page_with_its_number_of_queries(story: "Story", visit: Visit, count_queries: CountQueries) -> None:
    client = visit(story.house, "owner")
    of_run = pages(story.house, story.runs["done"], hook=story.hook)
    with_effects = pages(story.house, story.runs["unknown"], story.effects["unknown"])
    of_gate = pages(story.house, story.runs["gate"], story.effects["reserved"], story.gates["open"])
    for name, address in {**of_run, **{n: with_effects[n] for n in EFFECTS}, "runs:gate": of_gate["runs:gate"]}.items():
        if name in ONE_REQUEST:
            continue
        with count_queries(name):
            response = client.get(address)
        assert response.status_code == 200, name
        assert set(response["Content-Security-Policy"].split("; ")) == POLICY, name
        assert "private" in response["Cache-Control"], name
        assert response["X-Content-Type-Options"] == "nosniff", name


def test_every_route_of_the_pages_is_known_here(story: "Story") -> None:
    from django.urls import get_resolver

    prefix = re.compile(r"t/<slug:slug>/.+")
    routes = {
        p.name
        for r in get_resolver().url_patterns
        for p in getattr(r, "url_patterns", [])
        if prefix.match(str(p.pattern))
    }
    assert (
        routes == {name.split(":")[1] for name in pages(story.house, uuid4())} | {"verify", "tool", "workflow"} | POSTED
    )


@pytest.mark.parametrize("method", ["get", "post"])
def test_strangers_cannot_tell_whether_a_tenant_exists(story: "Story", cast: "Cast", visit: Visit, method: str) -> None:
    stranger = visit(cast.other, "owner")

    def body(address: str) -> bytes:
        response = getattr(stranger, method)(address)
        assert response.status_code == (405 if method == "post" and response.status_code == 405 else 404), address
        # Only the address itself, in the form that keeps the reader on the page, may differ.
        return bytes(re.sub(rb'name="(next|csrfmiddlewaretoken)" value="[^"]*"', b"", response.content))

    for address in pages(story.house, story.runs["done"], hook=story.hook).values():
        assert body(address) == body(address.replace(story.house.slug, "no-such-tenant")), address


def test_ids_of_another_tenant_are_not_there(story: "Story", cast: "Cast", visit: Visit) -> None:
    owner = visit(cast.home, "owner")
    mine, theirs = pages(cast.home, uuid4()), pages(story.house, story.runs["done"], hook=story.hook)
    for name, address in theirs.items():
        if name.startswith(("runs:", "approvals:")) or "member_" in name or "key_" in name or "webhook" in name:
            moved = address.replace(story.house.slug, cast.home.slug)
            if moved != mine[name]:
                assert owner.get(moved).status_code == 404, name
                assert owner.post(moved, {"reason": "x", "roles": "viewer", "overlap": "0"}).status_code in {
                    404,
                    405,
                }, name


def test_nobody_gets_in_without_signing_in(story: "Story") -> None:
    for address in pages(story.house, story.runs["done"], hook=story.hook).values():
        response = Client().get(address)
        assert response.status_code == 302
        assert response["Location"].startswith("/sign-in/?next="), address
    fragment = Client().get(
        pages(story.house, story.runs["done"], hook=story.hook)["runs:detail"], headers={"HX-Request": "true"}
    )
    assert fragment["HX-Redirect"].startswith("/sign-in/?next=")


def test_roles_see_what_they_may(story: "Story", visit: Visit) -> None:
    allowed = {
        "viewer": {"runs:list", "tenancy:members"},
        "operator": {"runs:list", "tenancy:members", "runs:cancel"},
        "compliance": {"runs:list", "tenancy:members", "audit:list"},
        "auditor": {"runs:list", "tenancy:members", "audit:list", "tenancy:keys"},
    }
    addresses = pages(story.house, story.runs["done"], hook=story.hook)
    for role, seen in allowed.items():
        client = visit(story.house, role)
        for name in ("runs:list", "tenancy:members", "runs:cancel", "audit:list", "tenancy:keys", "tenancy:key_new"):
            assert client.get(addresses[name]).status_code == (200 if name in seen else 403), (role, name)
        for name in ("tenancy:member_add", "tenancy:key_revoke", "tenancy:member_remove"):
            assert client.post(addresses[name], {"name": "x"}).status_code == 403, (role, name)
        body = client.get(addresses["runs:list"]).content.decode()
        for name in ("audit:list", "tenancy:keys"):
            assert (addresses[name] in body) == (name in seen), f"{role} is offered {name}"


def test_a_key_is_shown_once_and_works(cast: "Cast", visit: Visit, api: Any) -> None:
    owner, house = visit(cast.home, "owner"), cast.home
    new = reverse("tenancy:key_new", args=[house.slug])
    response = owner.post(
        new, {"name": "laptop", "scopes": ["runs:read", "work:claim"], "expires": "30", "agent": house.agent_id}
    )
    secret = secret_of(response)
    assert "no-store" in response["Cache-Control"]
    assert api(secret).post("/work/claim", json={"worker": "w"}).status_code == 204
    for name in ("tenancy:keys", "audit:list"):
        assert secret[-20:] not in owner.get(reverse(name, args=[house.slug])).content.decode()


def test_rotation_keeps_both_keys_for_a_while_and_revocation_ends_one(cast: "Cast", visit: Visit, api: Any) -> None:
    owner, house = visit(cast.home, "owner"), cast.home
    rotate = reverse("tenancy:key_rotate", args=[house.slug, house.key_ids["agent"]])
    response = owner.post(rotate, {"overlap": "24"})
    new = secret_of(response)
    for secret in (house.keys["agent"], new):
        assert api(secret).post("/work/claim", json={"worker": "w"}).status_code == 204
    again = owner.post(rotate, {"overlap": "24"})
    assert again.status_code == 409
    assert "replaced" in again.content.decode()
    revoke = reverse("tenancy:key_revoke", args=[house.slug, house.key_ids["agent"]])
    assert "no longer opens anything" in owner.post(revoke, follow=True).content.decode()
    assert api(house.keys["agent"]).post("/work/claim", json={"worker": "w"}).status_code == 401


def test_a_key_cannot_be_given_more_than_its_issuer_has(cast: "Cast", visit: Visit) -> None:
    owner, house = visit(cast.home, "owner"), cast.home
    response = owner.post(reverse("tenancy:key_new", args=[house.slug]), {"name": "x", "scopes": ["root:all"]})
    assert response.status_code == 422
    assert b'id="secret"' not in response.content


def test_members_are_added_changed_and_removed(cast: "Cast", visit: Visit) -> None:
    owner, house = visit(cast.home, "owner"), cast.home
    add, members = reverse("tenancy:member_add", args=[house.slug]), reverse("tenancy:members", args=[house.slug])
    email = f"asha.{uuid4().hex[:8]}@example.com"
    response = owner.post(add, {"name": "Asha Rao", "email": email, "roles": ["operator"]})
    password = secret_of(response)
    assert "no-store" in response["Cache-Control"]

    asha = Client()
    assert asha.post("/sign-in/", {"login": email, "password": password})["Location"] == "/"
    assert asha.get("/", follow=True).redirect_chain[-1][0] == f"/t/{house.slug}/runs/"

    assert (
        "member already"
        in owner.post(add, {"name": "Asha", "email": email.upper(), "roles": ["viewer"]}).content.decode()
    )
    known = cast.other.users["viewer"]
    response = owner.post(add, {"name": "Guest", "email": known.email, "roles": ["viewer"]}, follow=True)
    assert "signs in as before" in response.content.decode()

    member = re.search(rf"{email}.*?/members/([0-9a-f-]{{36}})/roles/", owner.get(members).content.decode(), re.DOTALL)
    assert member
    roles = reverse("tenancy:member_roles", args=[house.slug, member[1]])
    assert owner.post(roles, {"roles": ["auditor"]}).status_code == 302
    assert asha.get(reverse("audit:list", args=[house.slug])).status_code == 200
    assert owner.post(reverse("tenancy:member_remove", args=[house.slug, member[1]])).status_code == 302
    assert asha.get(members).status_code == 404, "a removed member is out at once"


def test_the_last_owner_stays(cast: "Cast", visit: Visit) -> None:
    owner, house = visit(cast.home, "owner"), cast.home
    for name, data in (("tenancy:member_remove", {}), ("tenancy:member_roles", {"roles": ["viewer"]})):
        response = owner.post(reverse(name, args=[house.slug, house.members["owner"]]), data)
        assert response.status_code == 409
        assert "Make someone else an owner first." in response.content.decode()
    assert (
        "The only owner cannot be removed." in owner.get(reverse("tenancy:members", args=[house.slug])).content.decode()
    )


def test_cancelling_needs_a_reason_and_leaves_a_trace(cast: "Cast", visit: Visit) -> None:
    from tests.browser.story import start
    from tests.cast import client

    house, operator = cast.home, visit(cast.home, "operator")
    with client(house.keys["agent"]) as agent:
        run = start(agent, "hello", "greet")
    address = reverse("runs:cancel", args=[house.slug, run])
    assert operator.post(address, {"reason": "   "}).status_code == 422
    response = operator.post(address, {"reason": "wrong segment"}, follow=True)
    assert "The run is cancelled." in response.content.decode()
    log = visit(house, "auditor").get(reverse("audit:list", args=[house.slug]), {"target": str(run)}).content.decode()
    assert "cancelled the run" in log
    assert "wrong segment" in log
    assert operator.post(address, {"reason": "again"}).status_code == 409


def test_looking_at_payloads_and_states_is_recorded(story: "Story", visit: Visit) -> None:
    viewer, run = visit(story.house, "viewer"), story.runs["done"]
    addresses = pages(story.house, run)
    # As a number of its own: within an id or a digest it may stand by chance.
    assert not re.search(r"\b281\b", viewer.get(addresses["runs:event"]).content.decode())
    shown = viewer.get(addresses["runs:payload"])
    fragment = viewer.get(addresses["runs:payload"], headers={"HX-Request": "true"})
    raw = viewer.get(addresses["runs:raw_payload"])
    state = viewer.get(addresses["runs:state"])
    assert "281" in shown.content.decode()
    assert "281" in fragment.content.decode()
    assert "<html" not in fragment.content.decode()
    assert raw.json() == {"payload": {"rows": 281, "page": 0}}
    assert raw["Content-Type"] == "application/json"
    assert "समायोजन लंबित" in state.content.decode()
    for response in (shown, fragment, raw, state):
        assert "no-store" in response["Cache-Control"]
    log = (
        visit(story.house, "auditor")
        .get(reverse("audit:list", args=[story.house.slug]), {"target": str(run)})
        .content.decode()
    )
    assert log.count("looked at a payload") >= 3
    assert "looked at a state" in log


def test_the_inspector_says_why_and_verifies(story: "Story", visit: Visit) -> None:
    viewer, house = visit(story.house, "viewer"), story.house
    texts = {
        "waiting": "No worker has taken read_page yet",
        "dead": "file_return stopped for good",
        "failed": "match failed and the run ended with it",
        "done": "resumed once",
    }
    for name, text in texts.items():
        assert text in viewer.get(reverse("runs:detail", args=[house.slug, story.runs[name]])).content.decode()
    verify = reverse("runs:verify", args=[house.slug, story.runs["done"]])
    page, fragment = viewer.post(verify), viewer.post(verify, headers={"HX-Request": "true"})
    assert "The chain verifies" in page.content.decode()
    assert "<h1>" in page.content.decode()
    assert "The chain verifies" in fragment.content.decode()
    assert "<h1>" not in fragment.content.decode()
    auditor = visit(house, "auditor")
    assert "The audit chain verifies" in auditor.post(reverse("audit:verify", args=[house.slug])).content.decode()


def test_nothing_new_is_answered_with_204(story: "Story", visit: Visit) -> None:
    viewer, house = visit(story.house, "viewer"), story.house
    for address in (
        reverse("runs:list", args=[house.slug]),
        reverse("runs:detail", args=[house.slug, story.runs["running"]]),
    ):
        version = re.search(r'"X-Live": "([^"]+)"', viewer.get(address).content.decode())
        assert version
        assert viewer.get(address, headers={"HX-Request": "true", "X-Live": "old"}).status_code == 200
        assert viewer.get(address, headers={"HX-Request": "true", "X-Live": version[1]}).status_code in {204, 200}
    assert "data-live" not in viewer.get(reverse("runs:detail", args=[house.slug, story.runs["done"]])).content.decode()
    gone = viewer.get(
        reverse("runs:detail", args=[house.slug, uuid4()]), headers={"HX-Request": "true", "X-Live": "old"}
    )
    assert gone["HX-Reswap"] == "none"


def test_filters_live_in_the_address(story: "Story", visit: Visit) -> None:
    viewer, address = visit(story.house, "viewer"), reverse("runs:list", args=[story.house.slug])

    def found(**query: Any) -> list[str]:
        body = viewer.get(address, query).content.decode()
        return re.findall(r"data-row>([^<]+)</a>", body)

    assert found(status="dead_letter") == ["pay-suppliers", "file-gstr-1"]
    assert found(workflow="check-vendor-master") == ["check-vendor-master"]
    assert found(status=["failed", "cancelled"]) == ["remind-overdue-customers", "match-card-settlements"]
    assert len(found(agent="clerk", project="main")) == 16
    assert found(**{"from": "2100-01-01"}) == []
    assert "No run matches" in viewer.get(address, {"workflow": "none"}).content.decode()
    assert viewer.get(address, {"q": str(story.runs["done"])})["Location"].endswith(f"/runs/{story.runs['done']}/")
    assert viewer.get(address, {"q": "file-gstr-1"})["Location"].endswith("?workflow=file-gstr-1")


HOSTILE = [
    "\x00",
    "'",
    '"><script>',
    "9" * 30,
    "-1",
    "½",
    "٣",
    "2026-99-99",
    "9999-12-31",
    "0001-01-01",
    "\ud800",
    " " * 500,
]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_addresses_are_answered(story: "Story", visit: Visit, value: str) -> None:
    owner, run = visit(story.house, "owner"), story.runs["done"]
    value = value.encode("utf-8", "surrogatepass").decode("latin-1")
    addresses = pages(story.house, run)
    for page, names in {
        "runs:list": ("q", "status", "workflow", "agent", "project", "from", "to", "cursor"),
        "audit:list": ("group", "actor", "target", "from", "to", "cursor"),
        "runs:detail": ("step", "scale"),
        "runs:events": ("after", "from"),
        "runs:state": ("version", "against", "before"),
    }.items():
        for name in names:
            response = owner.get(addresses[page], {name: value})
            assert response.status_code < 500, (page, name)
            assert "><script>" not in response.content.decode()


def test_far_events_and_versions_are_not_there(story: "Story", visit: Visit) -> None:
    viewer, house, run = visit(story.house, "viewer"), story.house, story.runs["done"]
    for seq in (0, 19, 10**12, 10**30):
        for name in ("runs:event", "runs:payload", "runs:raw_payload"):
            assert viewer.get(reverse(name, args=[house.slug, run, seq])).status_code == 404, (name, seq)
    for version in (3, 999_999_999):
        assert viewer.get(reverse("runs:state", args=[house.slug, run]), {"version": version}).status_code in {200, 404}


def test_signing_in_and_out(cast: "Cast") -> None:
    from tests.cast import PASSWORD

    browser, email = Client(), cast.home.users["viewer"].email
    page = browser.get("/sign-in/")
    assert page.status_code == 200
    assert "Sign up" not in page.content.decode()
    wrong = browser.post("/sign-in/", {"login": email, "password": "wrong horse battery 7"})
    unknown = browser.post("/sign-in/", {"login": f"nobody.{email}", "password": "wrong horse battery 7"})
    assert wrong.status_code == unknown.status_code == 200

    def complaint(response: Any) -> str:
        found = re.search(r'role="alert">(.*?)</form>', response.content.decode(), re.DOTALL)
        assert found
        return re.sub(r'value="[^"]*"', "", found[1])

    assert complaint(wrong) == complaint(unknown), "the answer does not tell whether an account exists"
    assert (
        browser.post("/sign-in/?next=https://evil.example/", {"login": email, "password": PASSWORD})["Location"] == "/"
    )
    assert browser.get("/", follow=True).status_code == 200
    assert browser.get("/sign-out/").status_code == 200
    assert browser.post("/sign-out/").status_code == 302
    assert browser.get("/t/").status_code == 302


def test_sign_in_is_limited(cast: "Cast") -> None:
    browser, email = Client(REMOTE_ADDR="203.0.113.9"), cast.home.users["approver"].email
    answers = [browser.post("/sign-in/", {"login": email, "password": f"wrong {n}"}) for n in range(8)]
    assert any(answer.status_code == 429 or "Too many" in answer.content.decode() for answer in answers)


def test_passwords_are_changed_and_stored_with_argon2(cast: "Cast", visit: Visit) -> None:
    from config import settings as file
    from tests.cast import PASSWORD

    assert file.PASSWORD_HASHERS == ["django.contrib.auth.hashers.Argon2PasswordHasher"]
    browser, email = visit(cast.home, "viewer"), cast.home.users["viewer"].email
    weak = browser.post("/password/", {"oldpassword": PASSWORD, "password1": "short", "password2": "short"})
    assert b"aria-invalid" in weak.content
    new = "another horse battery 9"
    assert browser.post("/password/", {"oldpassword": PASSWORD, "password1": new, "password2": new}).status_code == 302
    assert Client().post("/sign-in/", {"login": email, "password": new}).status_code == 302


def test_a_person_in_no_tenant_is_told_what_to_do(cast: "Cast", visit: Visit) -> None:
    house, viewer = cast.home, visit(cast.home, "viewer")
    visit(house, "owner").post(reverse("tenancy:member_remove", args=[house.slug, house.members["viewer"]]))
    assert "You are in no tenant" in viewer.get("/", follow=True).content.decode()


def test_choices_are_checked_and_remembered(cast: "Cast", visit: Visit) -> None:
    browser = visit(cast.home, "viewer")
    response = browser.post(
        "/choose/", {"theme": "dark", "language": "hi", "zone": "Asia/Kolkata", "next": "/profile/"}
    )
    assert response["Location"] == "/profile/"
    page = browser.get("/profile/").content.decode()
    assert '<html lang="hi" data-theme="dark">' in page
    assert "थीम" in page
    bad = {"theme": "x", "language": "xx", "zone": "../etc/passwd", "keys": "?", "next": "//evil.example/"}
    response = browser.post("/choose/", bad)
    assert response["Location"] == "/"
    assert not response.cookies
    assert browser.get("/choose/").status_code == 405


def test_a_form_without_its_token_changes_nothing(cast: "Cast") -> None:
    from tests.web.conftest import BACKEND

    browser, house = Client(enforce_csrf_checks=True), cast.home
    browser.force_login(house.users["owner"], backend=BACKEND)
    response = browser.post(reverse("tenancy:member_remove", args=[house.slug, house.members["viewer"]]))
    assert response.status_code == 403
    assert "This form is no longer valid" in response.content.decode()


def test_a_database_that_is_away_gives_a_page(story: "Story", visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError
    from psycopg import errors

    from runs import queries

    def away(**_: Any) -> None:
        raise OperationalError("away") from errors.ConnectionFailure("away")

    monkeypatch.setattr(queries, "list_runs", away)
    response = visit(story.house, "viewer").get(reverse("runs:list", args=[story.house.slug]))
    assert response.status_code == 503
    assert "Temporarily unavailable" in response.content.decode()
