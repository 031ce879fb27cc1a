"""Random interleavings, with threads: an effect behind a gate executes only under a grant that was earned, for exactly those bytes.

Hypothesis draws a story of rounds; what stands in one round is done at the same moment, by threads of their own. A bank writes down
what it was told to execute; afterwards every line is held against the requests, votes and grants in the database.
"""

import threading
import uuid
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
from django.db import connections
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from approvals import sealing
from approvals.models import Delegation, PolicyPermission, PolicyVersion, Request, RequestGroup, Vote
from approvals.operations import asking, care
from kernel import clock, codec
from kernel.actor import Actor
from kernel.context import tenant_scope
from kernel.errors import DomainError
from runs import operations as runs_ops
from runs.models import Effect, Grant
from runs.wire import TargetIn
from tests.approvals.office import Agent, Office, adjustment, let_deadline_pass, open_office
from tests.cast import make_house

PEOPLE: Final = ("ann", "ben", "cleo")
# What may happen, and how often it is drawn beside the others. `reserve` is the agent's; it executes at once when it may.
ACTIONS: Final = (
    "reserve", "reserve", "reserve", "other", "approve:ann", "approve:ben", "approve:cleo", "approve:ann", "approve:ben",
    "reject:cleo",
    "edit:ann", "expire", "revoke:ben", "demote:ann", "promote:ann", "target", "policy", "revalidate", "renew", "sweep", "withdraw",
)  # fmt: skip
Round = list[str]


@dataclass
class Executed:
    """What the agent was told to do: under which grant, with which bytes, and what the approvers' roles were when it happened."""

    effect: UUID
    attempt: int
    input: bytes


@dataclass
class World:
    office: Office
    agent: Agent
    count: int
    executed: list[Executed] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: int = 0
    target: int = 1
    changes: int = 0
    # By the database's clock: when somebody was without the role (from the end of taking it until the beginning of giving it back),
    # and when a version of the policy was replaced for certain.
    without: dict[str, list[list[datetime]]] = field(default_factory=lambda: defaultdict(list))
    replaced: dict[int, datetime] = field(default_factory=dict)
    roles: threading.Lock = field(default_factory=threading.Lock)
    policies: threading.Lock = field(default_factory=threading.Lock)

    def do(self, action: str) -> None:
        """One thing that somebody does; what is refused is refused, and anything else that goes wrong fails the test."""
        verb, _, name = action.partition(":")
        try:
            getattr(self, f"do_{verb}")(*([name] if name else []))
        except DomainError:
            pass
        finally:
            connections.close_all()

    def latest(self) -> UUID | None:
        with tenant_scope(self.office.house.id):
            found: UUID | None = Request.objects.order_by("-id").values_list("id", flat=True).first()
            return found

    def do_reserve(self, amount: str = "250000.00") -> None:
        """The agent, one at a time: claims its step if it can, asks, and executes what it is told to."""
        with self.lock:
            claim = {"worker": "w", "queues": [self.agent.queue], "lease_seconds": 600}
            answer = self.agent.http.post("/work/claim", json=claim)
            if answer.status_code == 200:
                self.agent.lease, self.agent.epoch = answer.json()["lease"], answer.json()["epoch"]
            body = adjustment(amount=amount)
            asked = self.agent.ask(
                "post_adjustments", input=body, target={"version": str(self.target), "content": {"n": self.target}}
            )
            if asked.status_code != 200:
                assert asked.status_code == 409, asked.text
                return
            found = asked.json()
            if found["decision"] != "execute":
                return
            done = found.get("input", body)
            self.executed.append(Executed(UUID(found["effect"]), found["attempt"], codec.canonical(done)))
            # It certainly did not happen, so that there is something left to ask for.
            error = {"class": "transient", "message": "bank closed"}
            closed = self.agent.close(found["effect"], "failed", error=error)
            assert closed.status_code == 200, closed.text

    def do_other(self) -> None:
        self.do_reserve("99.00")

    def do_approve(self, name: str) -> None:
        if (request := self.latest()) is not None:
            self.office.decide(name, request)

    def do_reject(self, name: str) -> None:
        if (request := self.latest()) is not None:
            self.office.decide(name, request, "reject")

    def do_edit(self, name: str) -> None:
        if (request := self.latest()) is not None:
            self.office.edit(name, request, adjustment(amount=f"{uuid.uuid4().int % 1000}.00"))

    def do_expire(self) -> None:
        if (request := self.latest()) is not None:
            let_deadline_pass(request)
            runs_ops.sweep()

    def do_revoke(self, name: str) -> None:
        if (request := self.latest()) is not None:
            self.office.revoke(name, request)

    def do_demote(self, name: str) -> None:
        with self.roles:
            self.office.demote(name)
            if not self.without[name] or len(self.without[name][-1]) == 2:
                self.without[name].append([self.now()])

    def do_promote(self, name: str) -> None:
        with self.roles:
            if self.without[name] and len(self.without[name][-1]) == 1:
                self.without[name][-1].append(self.now())
            self.office.demote(name, "approver")

    def now(self) -> datetime:
        with tenant_scope(self.office.house.id):
            return asking.database_now()

    def do_target(self) -> None:
        self.target += 1
        if (request := self.latest()) is not None:
            with tenant_scope(self.office.house.id):
                asking.report_target(
                    tenant=self.office.house.id, request_id=request,
                    target=TargetIn(version=str(self.target), content=msgspec.Raw(b"{}")), actor=self.key, now=clock.now(),
                )  # fmt: skip

    def do_policy(self) -> None:
        with self.policies:
            self.changes += 1
            groups = [{"name": "finance", "role": "approver", "count": self.count}]
            self.office.change(groups=groups, grant_seconds=1000 + self.changes)
            self.replaced[self.changes] = self.now()

    def do_revalidate(self) -> None:
        if (request := self.latest()) is not None:
            with tenant_scope(self.office.house.id):
                asking.revalidate(tenant=self.office.house.id, request_id=request, actor=self.key, now=clock.now())

    def do_renew(self) -> None:
        if (request := self.latest()) is not None:
            olaf = self.office.principal("olaf")
            with tenant_scope(self.office.house.id):
                asking.renew(
                    tenant=self.office.house.id, request_id=request, reason="again", actor=olaf.actor, now=clock.now(),
                    principal=olaf,
                )  # fmt: skip

    def do_withdraw(self) -> None:
        if (request := self.latest()) is not None:
            with tenant_scope(self.office.house.id):
                asking.withdraw(
                    tenant=self.office.house.id, request_id=request, reason=None, actor=self.key, now=clock.now()
                )

    def do_sweep(self) -> None:
        runs_ops.sweep()
        care.sweep()

    @property
    def key(self) -> Actor:
        return Actor(kind="key", id=self.office.house.key_ids["agent"], label="agent")

    def judge(self) -> None:
        """Every execution had a grant of its own, and every grant was earned."""
        tenant = self.office.house.id
        with tenant_scope(tenant):
            used = list(Grant.objects.filter(status="used").order_by("used_at"))
            assert len(used) == len(self.executed), "an execution without a grant, or a grant that was used for nothing"
            for grant, executed in zip(used, self.executed, strict=True):
                assert grant.used_at is not None
                assert grant.effect_id == executed.effect
                assert grant.minted_at <= grant.used_at < grant.expires_at
                request = Request.objects.get(gate_id=grant.gate_id)
                assert request.status == "approved"
                assert bytes(request.action_digest) == bytes(grant.action_digest)
                assert request.decided_at is not None
                assert request.decided_at <= request.deadline_at
                action = sealing.open_(
                    tenant=tenant, key_id=request.data_key_id, row=request.id, blob=bytes(request.action)
                )
                assert action == executed.input, "other bytes than those that were approved"
                votes = list(Vote.objects.filter(request_id=request.id, round=request.round, decision="approve"))
                for group in RequestGroup.objects.filter(request_id=request.id, round=request.round):
                    voters = {vote.authority_id for vote in votes if vote.group == group.name}
                    assert len(voters) >= group.needed
                    assert not voters & set(request.editors)
                assert {bytes(vote.digest) for vote in votes} == {bytes(request.digest)}
                version = PolicyVersion.objects.values_list("version", flat=True).get(id=request.policy_version_id)
                assert version not in self.replaced or grant.used_at < self.replaced[version], "by a policy of the past"
                for name, times in self.without.items():
                    if self.office.people[name] in {vote.authority_id for vote in votes}:
                        assert not any(
                            time[0] < grant.used_at and (len(time) == 1 or grant.used_at < time[1]) for time in times
                        ), f"{name} had lost the role"
            assert Grant.objects.filter(status="used").values("gate_id").distinct().count() == len(used)
            for grant in Grant.objects.all():
                assert Request.objects.get(gate_id=grant.gate_id).status in ("approved", "stale", "superseded")
            open_gates = Request.objects.filter(status__in=["open", "stale"]).values_list("gate_id", flat=True)
            assert len(open_gates) <= 1, "one action waits at one gate"
            assert Effect.objects.count() == 1
            assert not Delegation.objects.exists()
            assert not PolicyPermission.objects.exists()


def play(rounds: list[Round], count: int) -> World:
    house = make_house("Acme", roles=())
    office = open_office(house, groups=[{"name": "finance", "role": "approver", "count": count}], deadline_seconds=3600)
    office.hire("cleo")
    agent = Agent(house).begin()
    world = World(office, agent, count)
    world.do("reserve")
    for actions in rounds:
        barrier = threading.Barrier(len(actions))

        def one(action: str, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            world.do(action)

        with ThreadPoolExecutor(len(actions)) as threads:
            calls: list[Callable[[], None]] = [partial(one, action) for action in actions]
            for done in [threads.submit(call) for call in calls]:
                done.result()
    world.judge()
    return world


def rounds(longest: int) -> st.SearchStrategy[list[Round]]:
    return st.lists(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4), min_size=2, max_size=longest)


def test_what_executes_was_approved(proof: bool) -> None:
    executions = 0

    @settings(
        max_examples=400 if proof else 8, deadline=None, derandomize=not proof, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(rounds=rounds(20 if proof else 8), count=st.sampled_from([1, 2]))
    def run(rounds: list[Round], count: int) -> None:
        nonlocal executions
        executions += len(play(rounds, count).executed)

    run()
    # A story that executes for certain, so that the judge has seen what it judges.
    told = [
        ["approve:ann"],
        ["reserve"],
        ["reserve"],
        ["edit:ann"],
        ["approve:ben"],
        ["reserve", "revoke:ben"],
        ["reserve"],
    ]
    executions += len(play(told, 1).executed)
    assert executions


def test_demotion_and_use_at_the_same_moment() -> None:
    """Either the use comes first, under a right that still stood, or nothing is executed."""
    for _ in range(4):
        world = play([["approve:ann"], ["reserve", "demote:ann"], ["reserve"]], 1)
        with tenant_scope(world.office.house.id):
            stale = Request.objects.filter(stale_reason="approver_lost_role").count()
        assert len(world.executed) + stale == 1
