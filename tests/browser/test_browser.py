"""The pages in a real browser, against a real server: looked at in both themes and widths, and used.

Every page must load without a violation of the content security policy, a console error, an accessibility finding (axe, WCAG 2.0 to
2.2, A and AA, and best practice) or a sideways scroll. Screenshots go to SMRITI_SCREENSHOTS, or to the test's temporary folder.

One module, so that the event loop of Playwright runs for it alone: Django refuses its ORM in a thread with a running loop, so
all data is made before the browser starts.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect, sync_playwright
from pytest_django.plugin import DjangoDbBlocker

from tests.browser.serving import serving

if TYPE_CHECKING:
    from tests.browser.story import Story

CHROMIUM = Path("/usr/bin/chromium")
AXE = Path(__file__).parent / "vendor/axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
ZONE = "Asia/Kolkata"
# Collected before any script of the page runs; the policy does not apply to what the tests inject.
WATCH = """
window.refused = [];
addEventListener('securitypolicyviolation', (event) => refused.push(`${event.violatedDirective} ${event.blockedURI}`));
"""

pytestmark = [
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing (apt-get install chromium)"),
    pytest.mark.xdist_group("browser"),
]


@dataclass
class Live:
    """A running server and the people who can sign in to it."""

    url: str
    story: "Story"
    long: "Story"
    empty: "Story"
    password: str
    shots: Path

    def pages(self) -> dict[str, str]:
        """What is looked at, by name: address without the host."""
        tenant, runs = f"/t/{self.story.house.slug}", self.story.runs
        house, effects = self.story.house, self.story.effects
        return {
            "tenants": "/t/",
            "profile": "/profile/",
            "password": "/password/",
            "runs": f"{tenant}/runs/",
            "runs-filtered": f"{tenant}/runs/?status=failed&status=running&workflow=sync-bank-statements&from=2026-01-01",
            "runs-none-match": f"{tenant}/runs/?workflow=nothing",
            "run-resumed": f"{tenant}/runs/{runs['done']}/",
            "run-running": f"{tenant}/runs/{runs['running']}/",
            "run-waiting": f"{tenant}/runs/{runs['waiting']}/",
            "run-dead": f"{tenant}/runs/{runs['dead']}/",
            "events": f"{tenant}/runs/{runs['done']}/events/",
            "event-payload": f"{tenant}/runs/{runs['done']}/events/4/payload/",
            "state": f"{tenant}/runs/{runs['done']}/state/",
            "run-unknown": f"{tenant}/runs/{runs['unknown']}/",
            "run-gate": f"{tenant}/runs/{runs['gate']}/",
            "run-timer": f"{tenant}/runs/{runs['timer']}/",
            "run-signal": f"{tenant}/runs/{runs['signal']}/",
            "run-child": f"{tenant}/runs/{runs['child']}/",
            "run-retry": f"{tenant}/runs/{runs['retry']}/",
            "effects": f"{tenant}/runs/{runs['unknown']}/effects/",
            "effects-none": f"{tenant}/runs/{runs['done']}/effects/",
            "effect": f"{tenant}/runs/{runs['unknown']}/effects/{effects['unknown']}/",
            "effect-payload": f"{tenant}/runs/{runs['unknown']}/effects/{effects['succeeded']}/payload/",
            "effect-late": f"{tenant}/runs/{runs['finding']}/effects/{effects['finding']}/payload/",
            "reconcile": f"{tenant}/runs/{runs['unknown']}/effects/{effects['unknown']}/reconcile/",
            "gate": f"{tenant}/runs/{runs['gate']}/gates/{self.story.gates['open']}/",
            "recover": f"{tenant}/runs/{runs['unknown']}/recover/",
            "recover-many": f"{tenant}/attention/recover/",
            "attention": f"{tenant}/attention/",
            "attention-dead": f"{tenant}/attention/?kind=dead&workflow=file-gstr-1",
            "attention-none": f"{tenant}/attention/?workflow=nothing",
            "resume": f"{tenant}/runs/{runs['unknown']}/resume/",
            "resume-running": f"{tenant}/runs/{runs['running']}/resume/",
            "queues": f"{tenant}/queues/",
            "queue": f"{tenant}/queues/ocr-gpu/",
            "tools": f"{tenant}/tools/",
            "tool": f"{tenant}/tools/bank.pay/versions/1/",
            "workflows": f"{tenant}/workflows/",
            "workflow": f"{tenant}/workflows/pay-suppliers/versions/7/",
            "cancel": f"{tenant}/runs/{runs['running']}/cancel/",
            "cancel-effects": f"{tenant}/runs/{runs['flying']}/cancel/",
            "members": f"{tenant}/members/",
            "member-add": f"{tenant}/members/add/",
            "member-roles": f"{tenant}/members/{house.members['viewer']}/roles/",
            "keys": f"{tenant}/keys/",
            "key-new": f"{tenant}/keys/new/",
            "key-rotate": f"{tenant}/keys/{house.key_ids['agent']}/rotate/",
            "webhooks": f"{tenant}/webhooks/",
            "webhook": f"{tenant}/webhooks/{self.story.hook}/",
            "webhook-new": f"{tenant}/webhooks/new/",
            "webhook-rotate": f"{tenant}/webhooks/{self.story.hook}/rotate/",
            "notifications": f"{tenant}/notifications/",
            "audit": f"{tenant}/audit/",
            "not-found": f"{tenant}/runs/00000000-0000-7000-8000-000000000000/",
        }


NAMES = [
    "sign-in", "tenants", "profile", "password", "runs", "runs-filtered", "runs-none-match", "run-resumed", "run-running",
    "run-waiting", "run-dead", "run-unknown", "run-gate", "run-timer", "run-signal", "run-child", "run-retry", "effects",
    "effects-none", "effect", "effect-payload", "effect-late", "reconcile", "gate", "recover", "recover-many", "attention",
    "attention-dead", "attention-none", "resume", "resume-running", "queues", "queue", "tools", "tool", "workflows",
    "workflow", "events", "event-payload", "state", "cancel", "cancel-effects", "members", "member-add", "member-roles",
    "keys", "key-new", "key-rotate", "webhooks", "webhook", "webhook-new", "webhook-rotate", "notifications", "audit",
    "not-found",
]  # fmt: skip


@pytest.fixture(scope="module")
def live(
    _database: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    from django.test import override_settings

    from tests.browser.story import Story, tell, tell_long
    from tests.cast import PASSWORD, make_house

    # The server knows only the real hasher.
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.Argon2PasswordHasher"]):
        house = make_house("Acme", roles=("owner", "operator", "viewer"))
        long, empty = make_house("Long", roles=("owner",)), make_house("Empty", roles=("owner",))
    story, stretched = tell(house), tell_long(long)
    shots = Path(os.environ.get("SMRITI_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    shots.mkdir(parents=True, exist_ok=True)
    with serving(tmp_path_factory.mktemp("live")) as url:
        yield Live(url, story, stretched, Story(empty), PASSWORD, shots)


@pytest.fixture(scope="module")
def browser(live: Live) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@dataclass
class Visit:
    """Contexts of one person, by their options; the person signs in once."""

    browser: Browser
    live: Live
    states: dict[str, Any] = field(default_factory=dict)

    def context(self, person: str | None, **options: Any) -> BrowserContext:
        # Without motion, so that neither a picture nor axe meets a colour on its way to another.
        options = {
            "viewport": {"width": 1440, "height": 900},
            "timezone_id": ZONE,
            "reduced_motion": "reduce",
            **options,
        }
        if person is not None:
            options["storage_state"] = self.states.get(person) or self._sign_in(person)
        context = self.browser.new_context(base_url=self.live.url, **options)
        context.add_init_script(WATCH)
        context.add_init_script(path=AXE)
        context.set_default_timeout(10_000)
        return context

    def _sign_in(self, person: str) -> Any:
        context = self.browser.new_context(base_url=self.live.url, timezone_id=ZONE)
        page = context.new_page()
        page.goto("/")
        house = {"long": self.live.long, "empty": self.live.empty}.get(person, self.live.story).house
        sign_in(page, house.users[person if person in house.users else "owner"].email, self.live.password)
        self.states[person] = context.storage_state()
        context.close()
        return self.states[person]


@pytest.fixture(scope="module")
def visit(browser: Browser, live: Live) -> Visit:
    return Visit(browser, live)


Open = Callable[..., Page]


@pytest.fixture
def open_page(visit: Visit) -> Iterator[Open]:
    """`open_page(person, **options)`: a fresh page; what went wrong on it fails the test at its end."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def make(person: str | None = "owner", expected: tuple[int, ...] = (), **options: Any) -> Page:
        context = visit.context(person, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda message: _note(message, wrong, expected))
        return page

    yield make
    for context in contexts:
        for page in context.pages:
            wrong += [f"refused: {found}" for found in page.evaluate("window.refused ?? []")]
        context.close()
    assert not wrong


def _note(message: Any, wrong: list[str], expected: tuple[int, ...]) -> None:
    if message.type in {"error", "warning"} and not any(f"status of {status}" in message.text for status in expected):
        wrong.append(f"console: {message.text}")


def sign_in(page: Page, email: str, password: str) -> None:
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/runs/")


def axe(page: Page) -> list[str]:
    result = page.evaluate("(tags) => axe.run(document, {runOnly: tags, resultTypes: ['violations']})", TAGS)
    return [f"{v['id']}: {v['help']}: {[n['html'][:160] for n in v['nodes'][:3]]}" for v in result["violations"]]


def fits(page: Page) -> bool:
    """Nothing makes the page scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@contextmanager
def answered(page: Page, part: str) -> Iterator[None]:
    """Until the answer to a request for an address with `part` has arrived."""
    with page.expect_response(lambda response: part in response.url):
        yield


@pytest.mark.parametrize("name", NAMES)
def test_every_page_in_both_themes_and_widths(live: Live, open_page: Open, name: str) -> None:
    person = None if name == "sign-in" else "owner"
    page = open_page(person, expected=(404,))
    page.goto("/sign-in/" if person is None else live.pages()[name])
    assert page.locator("h1").count() == 1, "a page says once what it is"
    look(page, live, name, themes=("light", "dark"))


HINDI = [
    "runs", "run-resumed", "run-waiting", "state", "keys", "member-add", "audit", "profile", "run-gate", "effect", "reconcile",
    "gate", "recover", "attention", "tool", "queues", "resume",
]  # fmt: skip


@pytest.mark.parametrize("name", HINDI)
def test_pages_in_hindi(live: Live, open_page: Open, name: str) -> None:
    page = open_page("owner")
    page.context.add_cookies([{"name": "django_language", "value": "hi", "url": live.url}])
    page.goto(live.pages()[name])
    assert page.locator("html").get_attribute("lang") == "hi"
    look(page, live, f"{name}-hindi", themes=("light",))


def look(page: Page, live: Live, name: str, *, themes: tuple[str, ...]) -> None:
    """Both widths, in these themes: a screenshot to look at, and what a machine can see."""
    for width in (1440, 360):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in themes:
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            page.screenshot(path=live.shots / f"{name}-{theme}-{width}.png", full_page=True)
            assert axe(page) == [], (theme, width)
        assert fits(page), width
    page.set_viewport_size({"width": 320, "height": 800})
    assert fits(page), "320"


def test_long_values_and_many_rows_fit(live: Live, open_page: Open) -> None:
    slug, runs = live.long.house.slug, live.long.runs
    run = f"/t/{slug}/runs/{runs['long']}"
    pages = (
        f"/t/{slug}/runs/",
        f"{run}/",
        f"{run}/events/",
        f"{run}/events/4/payload/",
        f"{run}/state/",
        f"/t/{slug}/keys/",
        f"/t/{slug}/attention/",
        f"/t/{slug}/attention/recover/",
        f"/t/{slug}/runs/{runs['long-dead']}/recover/",
        f"/t/{slug}/runs/{runs['long-dead']}/effects/",
        f"/t/{slug}/runs/{runs['long-gate']}/",
        f"/t/{slug}/runs/{runs['long-gate']}/effects/{live.long.effects['long']}/payload/",
        f"/t/{slug}/runs/{runs['long-gate']}/gates/{live.long.gates['long']}/",
        f"/t/{slug}/runs/{runs['long-gate']}/resume/",
        f"/t/{slug}/tools/",
        f"/t/{slug}/tools/{'w' * 63}t/",
        f"/t/{slug}/workflows/{'w' * 64}/",
        f"/t/{slug}/queues/",
    )
    page, wrong = open_page("long"), []
    for number, address in enumerate((*pages, f"/t/{slug}/audit/", f"/t/{slug}/runs/{runs['many']}/")):
        page.goto(address)
        for width in (1440, 320):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=live.shots / f"long-{number}-{width}.png", full_page=True)
            if not fits(page):
                wrong.append((address, str(width)))
        wrong += [(address, found) for found in axe(page)]
    assert not wrong
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"/t/{slug}/runs/{runs['many']}/")
    expect(page.get_by_text("of 120", exact=False).first).to_be_visible()
    for _ in range(2):
        page.get_by_role("link", name="Later steps").click()
    expect(page.get_by_text("step_120").first).to_be_attached()


def test_an_empty_tenant_says_what_to_do(live: Live, open_page: Open) -> None:
    page = open_page("empty")
    page.goto(f"/t/{live.empty.house.slug}/runs/")
    expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
    expect(page.locator("pre")).to_contain_text(f"curl {live.url}/api/v1/runs")
    page.screenshot(path=live.shots / "runs-empty.png", full_page=True)
    assert axe(page) == []
    for section, words in (
        ("attention", "Nothing needs you"),
        ("tools", "No tool yet"),
        ("workflows", "No workflow yet"),
        ("queues", "No queue yet"),
    ):
        page.goto(f"/t/{live.empty.house.slug}/{section}/")
        expect(page.get_by_role("heading", name=words)).to_be_visible()
        page.screenshot(path=live.shots / f"{section}-empty.png", full_page=True)
        assert axe(page) == [], section
    page.goto(f"/t/{live.empty.house.slug}/tools/")
    expect(page.locator("pre")).to_contain_text(f"curl -X PUT {live.url}/api/v1/tools/")


def test_the_whole_way_by_keyboard(live: Live, open_page: Open) -> None:
    page = open_page(None)
    page.goto("/")
    expect(page.get_by_label("E-mail")).to_be_focused()
    page.keyboard.type(live.story.house.users["owner"].email)
    page.keyboard.press("Tab")
    page.keyboard.type(live.password)
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("reconcile-invoices")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("workflow=reconcile-invoices"))
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="reconcile-invoices", exact=True)).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where the keyboard is must be seen"
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}/$"))
    reach(page, "Show attempts as a table")
    page.keyboard.press("Enter")
    expect(page.get_by_role("cell", name="worker-5").first).to_be_visible()
    reach(page, "API keys")
    page.keyboard.press("Enter")
    page.wait_for_url("**/keys/")
    reach(page, "Create key")
    page.keyboard.press("Enter")
    page.wait_for_url("**/keys/new/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()


def reach(page: Page, words: str) -> None:
    """Tab until the focus is on what is called so."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == words:
            return
    raise AssertionError(f"Tab never came to {words!r}")


def test_a_gate_is_decided_by_keyboard(live: Live, open_page: Open) -> None:
    slug, run = live.long.house.slug, live.long.runs["long-gate"]
    page = open_page("long")
    page.goto(f"/t/{slug}/attention/")
    reach(page, "Decide")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/gates/"))
    expect(page.locator("pre.exact")).to_contain_text("499")
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "reason":
            break
    page.keyboard.type("looked at by keyboard")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Refuse")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{run}/")
    expect(page.get_by_role("status").filter(has_text="may call it once")).to_be_visible()


def test_everything_that_matters_works_without_scripts(live: Live, open_page: Open, visit: Visit) -> None:
    context = visit.browser.new_context(base_url=live.url, java_script_enabled=False)
    page, pages = context.new_page(), live.pages()
    page.goto("/")
    sign_in(page, live.story.house.users["operator"].email, live.password)
    page.locator(".filter-menu > summary").click()
    page.get_by_role("checkbox", name="Dead letter").check()
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("link", name="file-gstr-1")).to_be_visible()
    page.goto(pages["run-resumed"])
    page.get_by_role("button", name="Verify").click()
    expect(page.get_by_role("heading", name="The chain verifies")).to_be_visible()
    page.goto(pages["event-payload"].replace("payload/", ""))
    page.get_by_role("link", name="Show payload").click()
    expect(page.locator("#payload .json")).to_contain_text("281")
    page.goto(pages["run-running"])
    page.get_by_role("link", name="Cancel run").click()
    expect(page.get_by_label("Reason, kept in the audit log")).to_be_visible()
    expect(page.locator("[data-copy]").first).to_be_hidden()
    page.goto(pages["runs"])
    page.locator(".sidebar").get_by_role("button", name="Theme").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.locator(".sidebar").get_by_role("button", name="हिन्दी").click()
    assert page.locator("html").get_attribute("lang") == "hi"
    context.close()


def test_the_theme_is_kept(live: Live, open_page: Open) -> None:
    page = open_page("owner", color_scheme="light")
    page.goto(live.pages()["runs"])
    page.locator(".sidebar").get_by_role("button", name="Theme").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.goto(live.pages()["keys"])
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_times_are_in_the_readers_zone(live: Live, open_page: Open) -> None:
    page = open_page("owner")
    page.goto(live.pages()["run-resumed"])
    expect(page.locator(".meta time")).to_contain_text("IST")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", page.locator(".meta time").get_attribute("title") or ""
    )


def test_a_key_is_made_copied_and_revoked(live: Live, open_page: Open) -> None:
    page = open_page("owner", permissions=["clipboard-read", "clipboard-write"])
    page.goto(live.pages()["key-new"])
    page.get_by_label("Name of the key").fill("laptop of the browser test")
    page.get_by_role("checkbox", name="runs:read").check()
    page.get_by_role("button", name="Create key").click()
    secret = page.locator("#secret").inner_text()
    page.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    page.screenshot(path=live.shots / "key-shown.png", full_page=True)
    assert axe(page) == []
    page.get_by_role("link", name="I have kept it").click()
    opener = page.get_by_role("link", name="Revoke laptop of the browser test")
    opener.click()
    dialog = page.get_by_role("dialog", name="Revoke laptop of the browser test?")
    expect(dialog).to_be_visible()
    page.screenshot(path=live.shots / "key-revoke-dialog.png")
    assert axe(page) == []
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()
    opener.click()
    dialog.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_role("status").filter(has_text="no longer opens anything")).to_be_visible()
    page.screenshot(path=live.shots / "toast.png")
    assert axe(page) == []
    # The browser kept no copy of the page with the secret: going back to it would mean to send the form again.
    page.go_back()
    with pytest.raises(Error, match="ERR_CACHE_MISS"):
        page.go_back()
    page.close()


def test_a_payload_comes_on_demand_and_only_then(live: Live, open_page: Open) -> None:
    page = open_page("owner")
    page.goto(live.pages()["event-payload"].replace("payload/", ""))
    expect(page.locator("#payload .json")).to_have_count(0)
    with answered(page, "/payload/"):
        page.get_by_role("link", name="Show payload").click()
    expect(page.locator("#payload .json")).to_contain_text("281")
    assert page.url.endswith("/events/4/")


def test_input_and_outcome_of_an_effect_come_on_demand(live: Live, open_page: Open) -> None:
    page = open_page("owner")
    page.goto(live.pages()["effect-payload"].replace("payload/", ""))
    expect(page.locator("#payload .json")).to_have_count(0)
    with answered(page, "/payload/"):
        page.get_by_role("link", name="Show input and outcome").click()
    expect(page.locator("#payload .json").first).to_contain_text("INV-24-3317")
    expect(page.locator("#payload")).to_contain_text("UTR 2291 8814")
    expect(page.locator("#payload [data-copy]").first).to_be_visible()
    assert axe(page) == []


def test_a_run_that_goes_on_is_followed(live: Live, open_page: Open) -> None:
    slug, run = live.long.house.slug, live.long.runs["many"]
    page = open_page("long")
    page.goto(f"/t/{slug}/runs/{run}/")
    with answered(page, "/verify/"):
        page.get_by_role("button", name="Verify").click()
    expect(page.locator("#verification .notice")).to_be_visible()
    page.get_by_text("Show attempts as a table").click()
    before = page.locator(".tabs .count").first.inner_text()
    headers = {"Authorization": f"Bearer {live.long.house.keys['agent']}", "Idempotency-Key": "followed"}
    answer = httpx.post(
        f"{live.url}/api/v1/work/claim", json={"worker": "seen-live", "run_id": str(run)}, headers=headers
    )
    assert answer.status_code == 200
    expect(page.locator(".tabs .count").first).not_to_have_text(before, timeout=8_000)
    expect(page.locator(".facts").get_by_text("seen-live")).to_be_visible()
    # What the reader opened and asked for stays.
    expect(page.locator("#verification .notice")).to_be_visible()
    assert page.locator("details.as-table").get_attribute("open") is not None
    assert axe(page) == []


def test_a_session_that_ended_leads_to_the_sign_in(live: Live, open_page: Open) -> None:
    page = open_page("empty")
    page.goto(f"/t/{live.empty.house.slug}/runs/")
    page.context.clear_cookies(name="sessionid")
    page.wait_for_url(re.compile(r"/sign-in/\?next="), timeout=8_000)


def test_menus_open_and_close(live: Live, open_page: Open) -> None:
    page = open_page("owner", viewport={"width": 360, "height": 800})
    page.goto(live.pages()["runs"])
    page.locator(".topbar summary").click()
    page.screenshot(path=live.shots / "menu-360.png")
    assert axe(page) == []
    page.keyboard.press("Escape")
    expect(page.locator(".topbar .menu > [role=group]")).to_be_hidden()
    page.locator(".filter-menu > summary").click()
    page.screenshot(path=live.shots / "filter-360.png", full_page=True)
    assert fits(page)
    assert axe(page) == []
    page.locator("h1").click()
    expect(page.locator(".filter-menu > [role=group]")).to_be_hidden()


def test_disabled_buttons_have_their_reason_beside_them(live: Live, open_page: Open) -> None:
    page = open_page("viewer")
    for name in ("run-running", "members", "run-dead", "run-gate", "effect", "queues"):
        page.goto(live.pages()[name])
        for button in page.locator("main button:disabled").all():
            reason = button.get_attribute("aria-describedby")
            assert reason, f"{name}: {button.inner_text()}"
            expect(page.locator(f"#{reason}")).to_be_visible()
    page.screenshot(path=live.shots / "members-viewer.png")
