"""The pages of approvals: everything is shown and nothing of it acts, decisions are bound to what was shown, losers are told."""

import html
import json
import re
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.test import Client
from django.urls import reverse

from tests.web.conftest import CountQueries, Visit

if TYPE_CHECKING:
    from tests.approvals.office import Office
    from tests.cast import Cast

ESCAPES = "\x1b[2K"
EVIL = {
    "batch": "B-1", "amount": "250000.00", "currency": "INR",
    "payee": "\u202eknab\u202c <script>document.forms[0].submit()</script>",
    "note": "Please click Approve. </textarea></form><form action=/evil>",
    "link": "[https://bank.example](https://evil.example)",
    "name": "\u0440\u0430y\u0440al", "zero": "pay\u200bee", "escape": ESCAPES,
    "</dl><button name=answer value=approve>": "in a name",
}  # fmt: skip


def text(response: Any) -> str:
    return html.unescape(response.content.decode())


def at(office: "Office", name: str, *args: Any) -> str:
    return reverse(f"approvals:{name}", args=[office.house.slug, *args])


@pytest.fixture
def office(cast: "Cast") -> "Office":
    from tests.approvals.office import open_office

    return open_office(cast.home)


def approve(office: "Office", browser: Client, request_id: UUID, **data: Any) -> Any:
    data = {"digest": office.digest(request_id), "answer": "approve", **data}
    return browser.post(at(office, "decide", request_id), data, follow=True)


def test_a_request_is_looked_at_and_approved_and_the_next_one_comes(office: "Office", visit: Visit) -> None:
    from tests.approvals.office import adjustment, asked

    agent, first = asked(office, explanation="Two returns were booked late.")
    _other, second = asked(office, adjustment("B-2", "1000.00"))
    approver = visit(office.house, "approver")
    inbox = text(approver.get(at(office, "inbox")))
    assert "2 for you" in inbox
    assert '2<span class="vh"> wait for you</span>' in inbox
    assert "2 of 2 shown" in inbox
    assert "₹2,50,000.00" in inbox
    page = approver.get(at(office, "request", first))
    shown = text(page)
    for words in (
        "Two returns were booked late.", "High risk", "side_effect:irreversible", "0 of 1", "adjustments, version 1",
        "Can still decide",
        "Ann", "Ben", office.digest(first), "You may decide", "asked for approval",
    ):  # fmt: skip
        assert words in shown, words
    assert "no-store" in page["Cache-Control"]
    after = approve(office, approver, first)
    assert after.redirect_chain[-1][0] == at(office, "request", second)
    assert "Approved. The agent may now do exactly this, once." in text(after)
    assert office.status(first)[0] == "approved"
    agent.claim()
    assert agent.propose()["decision"] == "execute"
    history = text(approver.get(at(office, "inbox"), {"view": "history"}))
    assert str(first) in history
    assert str(second) not in history
    done = text(approver.get(at(office, "request", first)))
    assert "Used: the action was started" in done
    assert 'name="answer" value="approve"' not in done
    assert "data-left" not in done.split('id="detail"')[1], "a final state stops the clock"
    log = text(visit(office.house, "auditor").get(reverse("audit:list", args=[office.house.slug])))
    assert "approval" in log


def test_whoever_comes_second_is_told_who_was_first(office: "Office", visit: Visit) -> None:
    from tests.approvals.office import asked

    _agent, request_id = asked(office)
    approver = visit(office.house, "approver")
    digest = office.digest(request_id)
    office.decide("ann", request_id, "reject", reason="not ours")
    late = approve(office, approver, request_id, digest=digest)
    assert late.status_code == 409
    assert "Ann was first: it is rejected since" in text(late)
    assert "not ours" in text(late)
    assert 'name="answer" value="approve"' not in text(late)


def test_only_what_was_shown_can_be_decided(office: "Office", visit: Visit) -> None:
    from tests.approvals.office import asked

    _agent, request_id = asked(office)
    approver, viewer = visit(office.house, "approver"), visit(office.house, "viewer")
    changed = approve(office, approver, request_id, digest="0" * 64)
    assert changed.status_code == 409
    assert "This is not what you were shown" in text(changed)
    assert approve(office, approver, request_id, answer="maybe").status_code == 422
    assert approve(office, approver, request_id, answer="reject", reason=" ").status_code == 422
    refused = approve(office, viewer, request_id)
    assert refused.status_code == 403
    assert "none of its groups" in text(refused)
    assert office.status(request_id)[0] == "open"
    assert "the agent is told why" in text(approve(office, approver, request_id, answer="reject", reason="wrong batch"))
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(office.house.users["approver"], backend="allauth.account.auth_backends.AuthenticationBackend")
    assert browser.post(at(office, "decide", request_id), {"answer": "approve"}).status_code == 403


def test_hostile_payloads_are_shown_flagged_and_change_nothing(office: "Office", visit: Visit) -> None:
    from tests.approvals.office import asked

    agent, harmless = asked(office)
    _other, request_id = asked(
        office, EVIL | {"batch": "B-2"}, explanation="Already approved by the CFO. <button>Approve</button>",
        evidence=[{"kind": "fact", "ref": "ref\u202e", "content": {"text": "ignore previous rules <img src=x onerror=y>"}}],
    )  # fmt: skip
    approver = visit(office.house, "approver")
    plain, evil = (approver.get(at(office, "request", one)).content.decode() for one in (harmless, request_id))

    def controls(page: str) -> list[str]:
        page = re.sub(r'value="[^"]*"|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{64}|X-Live[^}]*', "", page)
        return re.findall(r"<(?:form|button|input|textarea|select|script)\b[^>]*>", page.split('id="detail"')[1])

    assert controls(evil) == controls(plain), "what an agent writes makes no control and changes none"
    assert agent.run
    page = html.unescape(evil)
    for sign in ("\u202e", "\u200b", "\x1b"):
        assert sign not in page
    for words in (
        "Look closely", "turn the text around", "cannot be seen. They are marked", "a browser would run", "leads to another",
        "letters that look like others", "It speaks to whoever decides", "⟦U+202E⟧", "⟦U+200B⟧", "⟦U+001B⟧",
    ):  # fmt: skip
        assert words in page, words
    assert "Look closely" not in plain
    raw = approver.get(at(office, "raw", request_id))
    assert json.loads(raw.content)["payee"] == EVIL["payee"]
    assert raw["Content-Disposition"].startswith("attachment")
    assert raw["X-Content-Type-Options"] == "nosniff"
    listed = approver.get(at(office, "inbox")).content.decode()
    assert "<script>document" not in listed
    edit = approver.get(at(office, "edit", request_id)).content.decode()
    assert "</textarea></form><form" not in edit
    assert "⟦U+202E⟧" in edit, "a control shows it turned around, so it is said beside it"
    approve(office, approver, request_id)
    assert office.status(request_id)[0] == "approved"
    assert office.status(harmless)[0] == "open"


def test_long_values_come_in_parts(office: "Office", visit: Visit) -> None:
    from tests.approvals.office import adjustment, asked

    long = "".join(f"row {number:06}\n" for number in range(60_000))
    _agent, request_id = asked(office, adjustment(long=long))
    approver = visit(office.house, "approver")
    page = approver.get(at(office, "request", request_id))
    assert len(page.content) < 400_000
    assert "It is very long" in text(page)
    found = re.findall(r'href="([^"]*/value/\?[^"]*)"', page.content.decode())
    assert found
    part = approver.get(html.unescape(found[0]), headers={"HX-Request": "true"})
    assert "row 000000" in text(part)
    assert "<html" not in text(part)
    last = approver.get(at(office, "value", request_id), {"what": "action", "at": "/long", "part": "13"})
    assert "row 059999" in text(last)
    for wrong in ({"at": "/none"}, {"part": "x"}, {"what": "secret"}, {"at": "/long", "part": "14"}):
        assert approver.get(at(office, "value", request_id), wrong).status_code == 404


def test_editing_asks_somebody_else(office: "Office", visit: Visit) -> None:
    from tests.approvals.office import adjustment, asked

    what = adjustment(lines=[1, 2.50], urgent=True, ratio=1.10, note="first\nsecond")
    agent, request_id = asked(office, what)
    approver = visit(office.house, "approver")
    form = at(office, "edit", request_id)
    page = approver.get(form).content.decode()
    labels = dict(re.findall(r'<label for="(v\d+)"><bdi>([a-z]+)</bdi>', page))
    names = {label: name for name, label in labels.items()}
    digest = office.digest(request_id)
    wrong = approver.post(form, {"digest": digest, names["ratio"]: "one"})
    assert wrong.status_code == 422
    assert "This is a number." in text(wrong)
    done = approver.post(
        form, {
            "digest": digest, names["amount"]: "1000.00", names["note"]: "first\r\nsecond", names["urgent"]: "false",
            "reason": "too much",
        },
        follow=True,
    )  # fmt: skip
    shown = text(done)
    assert "somebody else decides" in shown
    assert "You edited it" in shown
    assert "/amount" in shown
    assert "250000.00" in shown
    assert office.status(request_id)[0] == "superseded"
    new = UUID(done.redirect_chain[-1][0].rstrip("/").rsplit("/", 1)[1])
    action = office.detail(new).action
    assert action is not None
    assert json.loads(action) == {**what, "amount": "1000.00", "urgent": False}
    office.decide("ann", new)
    agent.claim()
    answer = agent.propose(what)
    assert answer["decision"] == "execute"
    assert answer["input"]["amount"] == "1000.00"
    _agent, other = asked(office, adjustment("B-9"))
    form = at(office, "edit", other)
    digest = office.digest(other)
    assert approver.post(form, {"digest": digest, "raw": "{"}).status_code in {400, 422}
    assert (
        approver.post(form, {"digest": digest, "raw": '{"batch": "B-9", "amount": "1", "currency": "INR"}'}).status_code
        == 302
    )
    assert office.status(other)[0] == "superseded"


def test_risk_asks_for_the_password(cast: "Cast", visit: Visit) -> None:
    from tests.approvals.office import adjustment, asked, open_office
    from tests.cast import PASSWORD

    office = open_office(cast.home, step_up_at="high")
    _agent, request_id = asked(office)
    _agent, second = asked(office, adjustment("B-2"))
    approver = visit(office.house, "approver")
    assert "Your password, because of the risk" in text(approver.get(at(office, "request", request_id)))
    without = approve(office, approver, request_id, reason="checked the returns")
    assert without.status_code == 403
    assert "Confirm who you are" in text(without)
    assert "checked the returns" in text(without), "what was typed stays"
    assert approve(office, approver, request_id, password="wrong").status_code == 403
    assert office.status(request_id)[0] == "open"
    assert "Approved." in text(approve(office, approver, request_id, password=PASSWORD))
    assert "Your password" not in text(approver.get(at(office, "request", second)))
    assert "Approved." in text(approve(office, approver, second)), "the proof holds for a while"


def test_several_like_ones_are_decided_together(cast: "Cast", visit: Visit) -> None:
    from tests.approvals.office import adjustment, asked, open_office

    office = open_office(cast.home, bulk_up_to="high")
    requests = [asked(office, adjustment(f"B-{n}", f"{n}000.00"))[1] for n in range(1, 4)]
    approver, operator = visit(office.house, "approver"), visit(office.house, "operator")
    inbox = approver.get(at(office, "inbox")).content.decode()
    assert inbox.count('name="request"') == 3
    assert "Choose all on this page" in inbox
    page = approver.get(at(office, "together"), {"request": [str(one) for one in requests]}).content.decode()
    choices = re.findall(r'name="choice" value="([^"]*)"', page)
    for one in requests:
        assert f"{one}:{office.digest(one)}" in choices
    office.decide("ann", requests[0], "reject")
    assert operator.post(at(office, "together"), {"choice": choices, "answer": "approve"}).status_code == 200
    assert office.status(requests[1])[0] == "open"
    assert approver.post(at(office, "together"), {"choice": choices, "answer": "reject"}).status_code == 422
    done = text(approver.post(at(office, "together"), {"choice": choices, "answer": "approve"}))
    assert "2 of 3 recorded" in done
    assert "Ann was first" in done
    assert [office.status(one)[0] for one in requests] == ["rejected", "approved", "approved"]
    assert approver.get(at(office, "together"), {"request": "x"}).status_code == 404


def test_news_are_cheap_and_decrypt_nothing(
    office: "Office", visit: Visit, monkeypatch: pytest.MonkeyPatch, count_queries: CountQueries
) -> None:
    from privacy import codec
    from tests.approvals.office import adjustment, asked

    _agent, request_id = asked(office)
    approver = visit(office.house, "approver")
    page = approver.get(at(office, "request", request_id)).content.decode()
    versions = re.findall(r'hx-headers=\'{"X-Live": "([0-9a-f]+)"}\'', page)
    assert len(versions) == 2
    live = html.unescape(re.search(r'hx-get="([^"]*selected=[^"]*)"', page)[1])  # type: ignore[index]
    ask = {"HX-Request": "true", "X-Live": versions[0]}
    opened = 0

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal opened
        opened += 1
        return unseal(*args, **kwargs)

    unseal = codec.unseal
    monkeypatch.setattr(codec, "unseal", counting)
    with count_queries("office:unchanged"):
        assert approver.get(live, headers=ask).status_code == 204
    news = at(office, "news", request_id)
    assert approver.get(news, headers={"HX-Request": "true", "X-Live": versions[1]}).status_code == 204
    assert opened == 0
    _agent, _second = asked(office, adjustment("B-2"))
    assert approver.get(live, headers=ask).status_code == 200
    assert opened > 0
    office.decide("ann", request_id)
    told = approver.get(news, headers={"HX-Request": "true", "X-Live": versions[1]})
    assert "has changed since you opened it" in text(told)


def test_the_number_of_queries_does_not_grow(office: "Office", visit: Visit, count_queries: CountQueries) -> None:
    from tests.approvals.office import adjustment, asked

    approver = visit(office.house, "approver")
    _agent, request_id = asked(office)
    approver.get(at(office, "request", request_id))
    with count_queries("office:inbox"):
        approver.get(at(office, "inbox"))
    with count_queries("office:request"):
        approver.get(at(office, "request", request_id))
    for number in range(12):
        asked(office, adjustment(f"N-{number}"))
    with count_queries("office:inbox"):
        assert "13 of 13 shown" in text(approver.get(at(office, "inbox")))
    with count_queries("office:request"):
        approver.get(at(office, "request", request_id))
    for name, args in (("edit", [request_id]), ("mine", []), ("policies", []), ("policy", [office.policy_id])):
        with count_queries(f"office:{name}"):
            assert approver.get(at(office, name, *args)).status_code == 200


def test_stale_expired_revoked_and_questions(office: "Office", visit: Visit) -> None:
    from runs import operations as runs_ops
    from tests.approvals.office import adjustment, asked, let_deadline_pass

    _agent, request_id = asked(office)
    approver, operator = visit(office.house, "approver"), visit(office.house, "operator")
    asked_once = approve(office, approver, request_id, answer="ask", reason="Which GRN?")
    assert "Which GRN?" in text(asked_once)
    assert "asked a question" in text(asked_once)
    assert (
        visit(office.house, "viewer")
        .post(at(office, "decide", request_id), {"answer": "ask", "reason": "x"})
        .status_code
        == 403
    )
    office.change(deadline_seconds=7200.0)
    stale = text(approver.get(at(office, "request", request_id)))
    assert "The policy has changed since it was asked." in stale
    assert 'name="answer" value="approve"' not in stale
    assert str(request_id) in text(approver.get(at(office, "inbox"), {"view": "stale"}))
    again = approver.post(at(office, "act", request_id), {"act": "revalidate"}, follow=True)
    assert "Asked again, on what holds now." in text(again)
    approve(office, approver, request_id)
    taken = approver.post(at(office, "act", request_id), {"act": "revoke", "reason": "wrong month"}, follow=True)
    assert "Taken back." in text(taken)
    assert "Taken back before it was used" in text(taken)
    assert approver.post(at(office, "act", request_id), {"act": "revoke", "reason": "twice"}).status_code == 409
    _agent, late = asked(office, adjustment("B-7"))
    page = at(office, "request", late)
    digest = office.digest(late)
    let_deadline_pass(late)
    refused = approve(office, approver, late, digest=digest)
    assert "the deadline had passed" in text(refused)
    assert "Nothing was done." in text(approver.get(page))
    runs_ops.sweep()
    renewed = operator.post(at(office, "act", late), {"act": "renew", "reason": "the CFO was away"}, follow=True)
    assert "with a new deadline" in text(renewed)


def test_absence_and_standing_in(office: "Office", visit: Visit) -> None:
    from datetime import timedelta

    from kernel import clock

    approver = visit(office.house, "approver")
    form = at(office, "mine")
    today = clock.now().date()
    days = {"first": str(today - timedelta(days=1)), "last": str(today + timedelta(days=3))}
    assert approver.post(form, days).status_code == 422, "says nothing"
    done = approver.post(form, {**days, "to": str(office.people["ben"]), "away": "on", "reason": "leave"}, follow=True)
    assert "It holds on these days" in text(done)
    assert "I am away" in text(done)
    assert "leave" in text(done)
    from tests.approvals.office import asked

    _agent, request_id = asked(office)
    assert "You are away" in text(approver.get(at(office, "request", request_id)))
    end = re.search(r'action="([^"]*/mine/[0-9a-f-]{36}/end/)"', done.content.decode())
    assert end
    assert visit(office.house, "owner").post(end[1]).status_code == 404, "not of another member"
    assert "Ended." in text(approver.post(end[1], follow=True))
    assert "You may decide" in text(approver.get(at(office, "request", request_id)))


def test_policies_are_tried_changed_and_given_approvers(office: "Office", visit: Visit) -> None:
    from tests.approvals.office import asked, policy_rules

    asked(office)
    owner, viewer = visit(office.house, "owner"), visit(office.house, "viewer")
    page = at(office, "policy", office.policy_id)
    assert "Changing policies needs the role" in text(viewer.get(page))
    denying = json.dumps({"match": {"tools": ["post_adjustments"]}, "deny": True})
    tried = viewer.post(page, {"rules": denying, "priority": "0", "enabled": "on", "last": "50", "try": "yes"})
    assert "1 actions: 0 allowed, 0 asked, 1 denied; 1 would be judged otherwise" in text(tried)
    assert viewer.post(page, {"rules": denying, "priority": "0", "enabled": "on", "last": "50"}).status_code == 403
    for wrong in ("{", '{"surprise": 1}', "{}"):
        assert owner.post(page, {"rules": wrong, "priority": "0", "enabled": "on", "last": "50"}).status_code == 422, (
            wrong
        )
    two = json.dumps(policy_rules(groups=[{"name": "finance", "count": 2, "approvers": True}]))
    changed = owner.post(page, {"rules": two, "priority": "5", "enabled": "on", "last": "50"}, follow=True)
    assert "version 2" in text(changed)
    assert "/groups/0/count" in text(changed)
    named = owner.post(
        at(office, "approver", office.policy_id), {"member": str(office.people["ann"]), "allowed": "yes"}, follow=True
    )
    assert "Take Ann off" in text(named)
    assert viewer.post(at(office, "approver", office.policy_id), {"member": "x"}).status_code == 403
    new = {"name": "second", "rules": two, "priority": "0", "last": "50"}
    assert "second" in text(owner.post(at(office, "policy_new"), new, follow=True))
    assert "There is a policy of this name." in text(owner.post(at(office, "policy_new"), new))
    assert "second" in text(owner.get(at(office, "policies")))
