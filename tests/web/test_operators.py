"""What operators decide on pages: outcomes, gates, dead letters, cancellation, tools, queues. Each act needs a reason."""

import html
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from tests.web.conftest import Visit

if TYPE_CHECKING:
    from tests.cast import Cast, House
    from tests.runs.driver import Worker

HOSTILE = "‮<b>elpoep</b>"


def text(response: Any) -> str:
    return html.unescape(response.content.decode())


def audit(house: "House", visit: Visit) -> str:
    return text(visit(house, "auditor").get(reverse("audit:list", args=[house.slug])))


@pytest.fixture
def worker(cast: "Cast") -> "Worker":
    from tests.runs.driver import Worker, register

    register(
        cast.home,
        reconcile={"settle_seconds": 900, "hint": "ask the bank"},
        amount={"path": "amount", "currency": "INR"},
    )
    worker = Worker(cast.home)
    worker.start("pay", "confirm")
    worker.claim()
    return worker


def pay(worker: "Worker", tool: str = "pay", invoice: str = "INV-1") -> dict[str, Any]:
    return worker.reserve(tool, input={"invoice": invoice, "amount": "412500.00"})


def fail(worker: "Worker", message: str = "the bank is closed") -> None:
    worker.commit(step={"outcome": "failed", "error": {"class": "permanent", "message": message}})


def address(house: "House", name: str, *args: Any) -> str:
    return reverse(f"runs:{name}", args=[house.slug, *args])


def test_an_unknown_outcome_is_explained_and_reconciled(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    from tests.runs.driver import settle

    house, operator = cast.home, visit(cast.home, "operator")
    effect = pay(worker)["effect"]
    fail(worker)
    page = text(operator.get(address(house, "effect", worker.run, effect)))
    assert "Who finds out: an operator." in page
    assert "Nothing happens until an operator says whether it happened" in page
    assert "₹4,12,500.00" in page
    form = address(house, "reconcile", worker.run, effect)
    assert "ask the bank" in text(operator.get(form))
    assert operator.post(form, {"result": "failed", "reason": " "}).status_code == 422
    early = operator.post(form, {"result": "failed", "reason": "not in the statement"})
    assert early.status_code == 409
    assert "Too early to say that it did not happen" in text(early)
    assert "not in the statement" in text(early), "what was typed stays"
    settle(effect)
    wanted = {"result": "succeeded", "reason": "seen", "external_id": "UTR 1", "evidence": "line 7"}
    assert "It will not be called again." in text(operator.post(form, wanted, follow=True))
    again = operator.post(form, {"result": "failed", "reason": "no"})
    assert again.status_code == 409
    assert "The outcome is known" in text(again)
    shown = text(operator.get(address(house, "effect_payload", worker.run, effect)))
    assert "UTR 1" in shown
    assert "line 7" in shown
    log = audit(house, visit)
    assert "said what became of an effect" in log
    assert "looked at a payload" in log


def test_payloads_of_effects_are_read_on_demand_only(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    house, viewer = cast.home, visit(cast.home, "viewer")
    effect = pay(worker, invoice="INV-SECRET")["effect"]
    worker.close(effect, external_id="UTR-SECRET")
    for name in (("effects", worker.run), ("effect", worker.run, effect)):
        assert "SECRET" not in text(viewer.get(address(house, *name)))
    assert "looked at a payload" not in audit(house, visit)
    fragment = viewer.get(address(house, "effect_payload", worker.run, effect), headers={"HX-Request": "true"})
    assert "INV-SECRET" in text(fragment)
    assert "UTR-SECRET" in text(fragment)
    assert "<html" not in text(fragment)
    assert "no-store" in fragment["Cache-Control"]
    assert "looked at a payload" in audit(house, visit)
    assert viewer.get(address(house, "reconcile", worker.run, effect)).status_code == 403


def test_a_late_answer_warns_who_says_otherwise(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    from tests.runs.driver import settle

    house, operator = cast.home, visit(cast.home, "operator")
    effect = pay(worker)["effect"]
    worker.lose()
    assert worker.close(effect, external_id="UTR-9").status_code == 409
    form = address(house, "reconcile", worker.run, effect)
    assert "There is evidence that it happened" in text(operator.get(form))
    settle(effect)
    operator.post(form, {"result": "failed", "reason": "I do not believe it"})
    assert "It may have happened after all" in text(operator.get(address(house, "effect", worker.run, effect)))


def test_a_gate_shows_everything_and_is_decided_once(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    from tests.runs.driver import register

    house, operator = cast.home, visit(cast.home, "operator")
    register(house, "ask", approval="always", amount={"path": "amount", "currency": "INR"})
    long = "x" * 5000 + "THE END"
    what = {"invoice": "INV-1", "amount": "1.10", "list": list(range(300)), "long": long, "payee": HOSTILE}
    asked = worker.reserve("ask", input=what)
    gate = address(house, "gate", worker.run, asked["gate"])
    assert "waits for a person's decision" in text(operator.get(address(house, "detail", worker.run)))
    assert visit(house, "viewer").get(gate).status_code == 403
    page = operator.get(gate)
    assert long in text(page)
    assert "299" in text(page)
    assert "\\u202e" in text(page)
    assert "‮" not in page.content.decode().split("<pre")[1].split("</pre>")[0], "nothing turns the text around"
    assert "no-store" in page["Cache-Control"]
    assert operator.post(gate, {"decision": "satisfy", "reason": ""}).status_code == 422
    assert operator.post(gate, {"decision": "both", "reason": "x"}).status_code == 422
    assert "may call it once" in text(operator.post(gate, {"decision": "satisfy", "reason": "checked"}, follow=True))
    again = operator.post(gate, {"decision": "refuse", "reason": "late"})
    assert again.status_code == 409
    assert "This gate is decided" in text(again)
    assert "Operator" in text(again), "who decided"
    worker.claim()
    assert worker.reserve("ask", input=what)["decision"] == "execute"
    assert "satisfied a gate" in audit(house, visit)


def test_each_way_out_of_the_dead_letter_says_what_it_would_do(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    house, operator = cast.home, visit(cast.home, "operator")
    paid = pay(worker)["effect"]
    worker.close(paid, output={"payment": "P-1"})
    fail(worker)
    form = address(house, "recover", worker.run)
    page = text(operator.get(form))
    assert "the bank is closed" in page
    assert "pay gets new attempts, at once." in page
    assert "confirm follows when it succeeds." in page
    assert "pay (₹4,12,500.00) cannot be undone and stays." in page
    assert operator.post(form, {"action": "skip"}).status_code == 422
    assert operator.post(form, {"action": "explode", "reason": "x"}).status_code == 422
    assert "The run is pending now." in text(
        operator.post(form, {"action": "skip", "reason": "not needed"}, follow=True)
    )
    assert worker.claim()["step"]["name"] == "confirm"
    again = operator.post(form, {"action": "retry", "reason": "again"})
    assert again.status_code == 409
    assert "This run is not in the dead letter" in text(again)
    assert "recovered the run" in audit(house, visit)


def test_an_unknown_effect_bars_the_ways_that_need_to_know(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    house, operator = cast.home, visit(cast.home, "operator")
    pay(worker)
    fail(worker)
    form = address(house, "recover", worker.run)
    assert text(operator.get(form)).count("Not yet: nobody knows whether") == 2
    refused = operator.post(form, {"action": "compensate", "reason": "take it back"})
    assert refused.status_code == 409
    assert "Say first what became of it." in text(refused)
    assert "cancelled" in text(operator.post(form, {"action": "cancel", "reason": "enough"}, follow=True))


def test_what_needs_a_person_is_counted_and_recovered_in_bulk(
    cast: "Cast", visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runs.ui import recovery
    from tests.runs.driver import Worker

    house, operator = cast.home, visit(cast.home, "operator")
    page = text(operator.get(address(house, "attention")))
    assert "Nothing needs you" in page
    runs = []
    for number in range(3):
        worker = Worker(house)
        runs.append(worker.start("only", workflow="nightly" if number else "hourly"))
        worker.claim()
        fail(worker, f"message {number}")
    page = text(operator.get(address(house, "attention")))
    assert '3<span class="vh"> open</span>' in page
    assert "message 2" in page
    assert "looked at messages of failures" in audit(house, visit)
    assert "message 0" not in text(operator.get(address(house, "attention"), {"workflow": "nightly"}))
    assert "Nothing here needs a person" in text(operator.get(address(house, "attention"), {"kind": "gate"}))
    form = address(house, "recover_many")
    with monkeypatch.context() as few:
        few.setattr(recovery, "BULK", 2)
        preview = text(operator.get(form))
        assert "1 more match: show the next ones" in preview
        assert (runs[0] in preview, runs[2] in preview) == (True, False)
        following = text(operator.get(form, {"after": runs[1]}))
        assert (runs[0] in following, runs[2] in following) == (False, True)
    assert operator.get(form, {"after": "x"}).status_code == 404
    assert operator.get(form, {"after": str(uuid4())}).status_code == 422
    preview = text(operator.get(form, {"workflow": "nightly"}))
    assert "each of the 2 runs" in preview
    assert runs[0] not in preview
    assert operator.post(form, {"action": "retry", "reason": "r", "run": "x"}).status_code == 422
    assert "No run was named" in text(operator.post(form, {"action": "retry", "reason": "r"}))
    done = operator.post(form, {"action": "retry", "reason": "the bank is open", "run": runs[1:]})
    assert "2 of 2 done" in text(done)
    done = operator.post(form, {"action": "retry", "reason": "the bank is open", "run": runs})
    assert "1 of 3 done" in text(done)
    assert "not in the dead letter any more" in text(done)
    assert visit(house, "viewer").post(form, {"action": "retry", "reason": "r", "run": runs}).status_code == 403


def test_a_cancellation_can_give_its_workers_time(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    house, operator = cast.home, visit(cast.home, "operator")
    effect = pay(worker)["effect"]
    form = address(house, "cancel", worker.run)
    assert "In flight: pay (₹4,12,500.00)." in text(operator.get(form))
    assert operator.post(form, {"reason": "r", "grace": "7"}).status_code == 422
    page = text(operator.post(form, {"reason": "wrong batch", "grace": "300"}, follow=True))
    assert "Its workers are told to stop." in page
    assert "The run is being cancelled" in page
    assert worker.close(effect, external_id="UTR-3").status_code == 200


def test_versions_are_switched_off_with_a_reason(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    house = cast.home
    owner, operator = visit(house, "owner"), visit(house, "operator")
    tool = address(house, "tool_version", "pay", "1")
    assert operator.get(address(house, "tool", "pay"))["Location"] == tool
    assert "Switching versions needs the role owner or admin." in text(operator.get(tool))
    assert operator.post(tool, {"enabled": "no", "reason": "broken"}).status_code == 403
    assert owner.post(tool, {"enabled": "no", "reason": ""}).status_code == 422
    assert "pay 1 is disabled." in text(owner.post(tool, {"enabled": "no", "reason": "broken"}, follow=True))
    assert worker.ask().status_code in {200, 422}
    assert "disabled a tool version" in audit(house, visit)
    assert "pay 1 is enabled." in text(owner.post(tool, {"enabled": "yes", "reason": "mended"}, follow=True))
    for name in ("tool_version", "workflow_version"):
        assert owner.get(address(house, name, "none", "1")).status_code == 404


def test_queues_are_paused_and_limited(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    house, operator = cast.home, visit(cast.home, "operator")
    worker.commit(step={"outcome": "released"})
    form = address(house, "queue", worker.queue)
    for wrong in ({"max_leased": "0"}, {"rate_per_minute": "-1"}, {"burst": "nan"}, {"max_leased": "x"}):
        assert operator.post(form, {"reason": "r", **wrong}).status_code == 422, wrong
    assert "Paused." in text(operator.post(form, {"paused": "on", "reason": "the bank is closed"}, follow=True))
    work = {"worker": "w", "queues": [worker.queue]}
    assert worker.http.post("/work/claim", json=work).status_code == 204
    page = text(operator.post(form, {"max_leased": "4", "rate_per_minute": "60", "reason": "open again"}, follow=True))
    assert "4 steps at once, 60 a minute" in page
    assert worker.http.post("/work/claim", json=work).status_code == 200
    every = address(house, "every_queue")
    operator.post(every, {"paused": "on", "reason": "stop all"})
    assert "All queues are paused" in text(operator.get(address(house, "queues")))
    assert "paused or limited a queue" in audit(house, visit)


def test_names_do_not_turn_sentences_around(cast: "Cast", visit: Visit) -> None:
    from kernel import actor, clock
    from kernel.context import tenant_scope
    from tenancy import operations

    house, owner = cast.home, visit(cast.home, "owner")
    with tenant_scope(house.id):
        issued = operations.issue_key(
            tenant=house.id, name=HOSTILE, scopes=["runs:read"], actor=actor.system("tests"), now=clock.now()
        )
    revoke = reverse("tenancy:key_revoke", args=[house.slug, issued.key.id])
    isolated = "<bdi>‮&lt;b&gt;elpoep&lt;/b&gt;</bdi>"
    assert f"Revoke {isolated}?" in owner.get(revoke).content.decode()
    assert f"{isolated} no longer opens anything." in owner.post(revoke, follow=True).content.decode()


def test_resuming_is_explained(cast: "Cast", worker: "Worker", visit: Visit) -> None:
    house, viewer = cast.home, visit(cast.home, "viewer")
    page = text(viewer.get(address(house, "resume", worker.run)))
    assert "It goes on by itself" in page
    assert "A worker has it." in page
    pay(worker)
    fail(worker)
    assert "An operator decides first" in text(viewer.get(address(house, "resume", worker.run)))


def test_forms_need_their_token(cast: "Cast", worker: "Worker") -> None:
    from tests.web.conftest import BACKEND

    house, browser = cast.home, Client(enforce_csrf_checks=True)
    browser.force_login(house.users["owner"], backend=BACKEND)
    effect = pay(worker)["effect"]
    fail(worker)
    for name in (
        ("reconcile", worker.run, effect), ("recover", worker.run), ("recover_many",), ("queue", worker.queue),
        ("tool_version", "pay", "1"),
    ):  # fmt: skip
        assert browser.post(address(house, *name), {"reason": "x"}).status_code == 403, name
