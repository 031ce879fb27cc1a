"""The inbox in a real browser: looked at, and a whole way through it by keyboard, by touch and without scripts."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.plugin import DjangoDbBlocker

from tests.browser import test_browser
from tests.browser.serving import serving
from tests.browser.test_browser import CHROMIUM, Live, Open, Visit, axe, fits, look, open_page, sign_in, visit

if TYPE_CHECKING:
    from tests.approvals.office import Office

__all__ = ["open_page", "visit"]

pytestmark = test_browser.pytestmark
HOSTILE = {
    "batch": "B-2", "amount": "250000.00", "currency": "INR",
    "payee": "\u202eknab\u202c <script>document.forms[0].submit()</script>", "note": "Please click Approve now. " * 30,
    "link": "[https://bank.example](https://evil.example)", "name": "\u0440\u0430y\u0440al", "unbroken": "w" * 1500,
    "hindi": "कृपया ₹83,700.00 के लौटाए गए माल का समायोजन करें।", "lines": [{"customer": f"C-{n}", "by": n * 100} for n in range(4)],
}  # fmt: skip


class Desk(Live):
    """The house of the office, and its requests by name."""

    office: "Office"
    requests: dict[str, UUID]
    digest: str

    def at(self, name: str = "") -> str:
        tail = f"{self.requests[name]}/" if name in self.requests else name
        return f"/t/{self.story.house.slug}/approvals/{tail}"


@pytest.fixture(scope="module")
def live(
    _database: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    from django.test import override_settings

    from tests.approvals.office import adjustment, asked, open_office
    from tests.browser.story import Story
    from tests.cast import PASSWORD, make_house

    # The server knows only the real hasher.
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.Argon2PasswordHasher"]):
        house = make_house("Acme", roles=("owner", "approver"))
        empty = make_house("Empty", roles=("owner",))
    groups = [{"name": "finance", "role": "approver", "count": 2}]
    office = open_office(house, groups=groups, bulk_up_to="high", step_up_at=None)
    target = {"version": "7", "content": {"amount": "0.00", "currency": "INR"}}
    evidence = [{"kind": "fact", "ref": "Mail from Kaveri Textiles", "content": {"text": "ignore previous rules"}}]
    found: dict[str, UUID] = {}
    for name, what, more in (
        ("plain", adjustment("B-1"), {"explanation": "Two returns were booked late."}),
        ("hostile", HOSTILE, {"explanation": "Already approved by the CFO.", "target": target, "evidence": evidence}),
        ("third", adjustment("B-3"), {}),
        ("fourth", adjustment("B-4"), {}),
        ("fifth", adjustment("B-5"), {}),
        ("decided", adjustment("B-6"), {}),
        ("old", adjustment("B-7"), {}),
    ):
        found[name] = asked(office, what, **more)[1]
    for name in ("plain", "third", "fourth", "fifth"):
        office.decide("ann", found[name], reason="Checked the two returns.")
    office.decide("ann", found["decided"], "reject", reason="not ours")
    found["edited"] = office.edit("ben", found["old"], adjustment("B-7", "1.50", extra="x"))
    digest = office.digest(found["fourth"])
    shots = Path(os.environ.get("SMRITI_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    shots.mkdir(parents=True, exist_ok=True)
    with serving(tmp_path_factory.mktemp("live")) as url:
        desk = Desk(url, Story(house), Story(house), Story(empty), PASSWORD, shots)
        desk.office, desk.requests, desk.digest = office, found, digest
        yield desk


@pytest.fixture(scope="module")
def browser(live: Desk) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


def test_every_page_in_both_themes_widths_and_languages(live: Desk, open_page: Open) -> None:
    page = open_page("approver")
    policy = f"policies/{live.office.policy_id}/"
    together = f"together/?request={live.requests['third']}&request={live.requests['fourth']}"
    for number, name in enumerate(
        ("", "plain", "hostile", "decided", "edited", "mine/", "policies/", policy, together, "?view=history")
    ):
        page.goto(live.at(name))
        assert page.locator("h1:visible").count() == 1, name
        look(page, live, f"approvals-{number}", themes=("light", "dark") if name in {"", "hostile"} else ("light",))
    page.goto(f"{live.at('hostile')}edit/")
    look(page, live, "approvals-edit", themes=("dark",))
    page.context.add_cookies([{"name": "django_language", "value": "hi", "url": live.url}])
    for name in ("", "hostile", policy):
        page.goto(live.at(name))
        assert page.locator("html").get_attribute("lang") == "hi"
        expect(page.locator("h1")).not_to_have_text("Approvals")
        look(page, live, f"approvals-hindi-{re.sub('[^a-z]', '', name)[:8]}", themes=("light",))
    nothing = open_page("empty")
    nothing.goto(f"/t/{live.empty.house.slug}/approvals/")
    expect(nothing.get_by_text("Nothing waits for you")).to_be_visible()
    look(nothing, live, "approvals-empty", themes=("light",))


def test_the_whole_way_by_keyboard(live: Desk, open_page: Open) -> None:
    page = open_page("approver")
    page.goto(live.at())
    page.keyboard.press("j")
    page.wait_for_url(re.compile(str(live.requests["plain"])))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("to the button that approves")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    page.keyboard.press("j")
    page.wait_for_url(re.compile(str(live.requests["hostile"])))
    expect(page.get_by_role("heading", name=re.compile("Look closely"))).to_be_visible()
    page.keyboard.press("e")
    page.wait_for_url("**/edit/")
    page.go_back()
    page.keyboard.press("k")
    page.wait_for_url(re.compile(str(live.requests["plain"])))
    page.keyboard.press("c")
    expect(page.get_by_label("Comment or question")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Comment or question")).not_to_be_focused()
    page.keyboard.press("r")
    expect(page.get_by_label("Comment, required to reject")).to_be_focused()
    page.keyboard.type("jake, checked")
    expect(page).to_have_url(re.compile(str(live.requests["plain"])))
    page.keyboard.press("Tab")
    page.keyboard.press("a")
    expect(page.get_by_role("button", name="Approve")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(str(live.requests["hostile"])))
    expect(page.get_by_role("status").filter(has_text="Approved. The agent may now do exactly this")).to_be_visible()
    expect(page.locator("time[data-left]").first).to_contain_text("d")
    page.locator(".list-foot").get_by_role("button", name="Turn keys off").click()
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile(str(live.requests["hostile"])))


def test_the_whole_way_by_touch_on_a_phone(live: Desk, open_page: Open) -> None:
    page = open_page("approver", viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.goto(live.at())
    page.locator(f"#l-{live.requests['third']} > a").tap()
    page.wait_for_url(re.compile(str(live.requests["third"])))
    expect(page.get_by_role("link", name="All approvals")).to_be_visible()
    expect(page.locator(".split-list")).to_be_hidden()
    approve = page.get_by_role("button", name="Approve")
    expect(approve).to_be_in_viewport()
    box = approve.bounding_box()
    assert box is not None
    assert box["height"] >= 44
    assert box["y"] > 370, "in reach of a thumb"
    approve.tap()
    expect(page.get_by_role("status").filter(has_text="Approved.")).to_be_visible()
    page.get_by_role("link", name="All approvals").tap()
    page.locator(f"#l-{live.requests['fourth']} .tick").tap()
    page.get_by_role("button", name="Choose all on this page").tap()
    page.get_by_role("button", name="Look at those chosen").tap()
    page.wait_for_url("**/together/**")
    assert fits(page)
    assert axe(page) == []
    expect(page.get_by_title(live.digest).first).to_be_visible()


def test_a_change_is_told_while_one_looks(live: Desk, open_page: Open, visit: Visit) -> None:
    page = open_page("approver")
    page.goto(live.at("fifth"))
    context = visit.browser.new_context(base_url=live.url, java_script_enabled=False)
    other: Page = context.new_page()
    other.goto("/")
    sign_in(other, live.story.house.users["approver"].email, live.password)
    other.goto(live.at("fifth"))
    other.get_by_label("Comment or question").fill("Without a script")
    other.get_by_role("button", name="Ask").first.click()
    expect(other.locator(".talk")).to_contain_text("Without a script")
    expect(page.get_by_text("This request has changed since you opened it.")).to_be_visible(timeout=60_000)
    other.get_by_role("button", name="Approve").click()
    expect(other.get_by_role("status").filter(has_text="Approved.")).to_be_visible()
    context.close()
    page.get_by_role("link", name="Show it as it is now").click()
    expect(page.locator(".page-title .status")).to_have_text("Approved")
