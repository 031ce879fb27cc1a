"""E-mails: who gets which, in which language, whatever stands in their subject."""

from collections.abc import Callable
from email import message_from_bytes, policy
from pathlib import Path
from uuid import UUID

import pytest
from django.core import mail
from django.utils.translation import gettext_lazy
from pytest_django import Settings

from kernel import clock
from kernel.actor import system
from kernel.context import tenant_scope
from kernel.errors import Invalid
from notices import kinds, queries
from notices import operations as notices
from tenancy import operations as tenancy_ops
from tests.cast import Cast, House

Dispatch = Callable[..., None]
WHO = system("tests")
KIND = "test.happened"


@pytest.fixture(autouse=True)
def _kind() -> None:
    kinds.register(KIND, "Something happened")


def tell(house: House, *roles: str, subject: str = "Payment waits", line: str = "₹5,00,000 to Asha") -> UUID:
    with tenant_scope(house.id):
        return notices.tell(
            tenant=house.id, kind=KIND, to=[house.members[role] for role in roles], subject=subject, lines=[line],
            link=f"/t/{house.slug}/runs/", data={}, now=clock.now(),
        )  # fmt: skip


def letters(house: House) -> dict[str, mail.EmailMessage]:
    mine = {user.email: role for role, user in house.users.items()}
    return {mine[m.to[0]]: m for m in mail.outbox if m.to[0] in mine}


def test_each_gets_an_e_mail_of_its_own_with_text_html_and_a_link(
    cast: Cast, dispatch: Dispatch, settings: Settings
) -> None:
    tell(cast.home, "approver", "owner", line="<b>pay</b> & go")
    dispatch(cast.home)
    found = letters(cast.home)
    assert set(found) == {"approver", "owner"}
    letter = found["owner"]
    assert letter.to == [cast.home.users["owner"].email]
    link = f"{settings.BASE_URL}/t/{cast.home.slug}/runs/"
    assert link in letter.body
    assert "<b>pay</b> & go" in letter.body
    assert isinstance(letter, mail.EmailMultiAlternatives)
    [(html, kind)] = letter.alternatives
    assert kind == "text/html"
    assert f'href="{link}"' in str(html)
    assert "&lt;b&gt;pay&lt;/b&gt; &amp; go" in str(html)
    assert "<form" not in str(html)
    assert f"/t/{cast.home.slug}/notifications/" in letter.extra_headers["List-Unsubscribe"]
    assert letter.extra_headers["Auto-Submitted"] == "auto-generated"


@pytest.mark.parametrize(
    "subject",
    [
        "Pay\r\nBcc: evil@example.com", "Pay\nX: y", "Pay\x00\x0b\x0c\x85me", "Pay\u2028Bcc: e@x.example\u2029", "\u202eevil\u202c",
        "a" * 5000, "\ud83d", "=?utf-8?q?x?=\r\n y", " ", "नमस्ते\u200c जी",
    ],
)  # fmt: skip
def test_a_hostile_subject_is_one_line_of_text(cast: Cast, dispatch: Dispatch, subject: str) -> None:
    tell(cast.home, "owner", subject=subject, line=subject)
    dispatch(cast.home)
    raw = letters(cast.home)["owner"].message().as_bytes()
    parsed = message_from_bytes(raw, policy=policy.default)
    assert set(parsed.keys()) == {
        "Subject", "From", "To", "Date", "Message-ID", "List-Unsubscribe", "Auto-Submitted", "Content-Type", "MIME-Version",
    }  # fmt: skip
    assert parsed["To"] == cast.home.users["owner"].email
    shown = str(parsed["Subject"])
    assert len(letters(cast.home)["owner"].subject) <= 200
    assert not any(sign in shown for sign in "\r\n\x00\u2028\u2029\u202e")


def test_wishes_are_kept_to_also_when_they_change_on_the_way(cast: Cast, dispatch: Dispatch) -> None:
    def choose(role: str, wanted: list[str], language: str = "en") -> None:
        with tenant_scope(cast.home.id):
            notices.choose(tenant=cast.home.id, member_id=cast.home.members[role], language=language, wanted=wanted)

    choose("viewer", [])
    choose("owner", [KIND], language="hi")
    tell(cast.home, "viewer", "owner", "auditor", "operator", subject=gettext_lazy("API keys"))  # type: ignore[arg-type]
    choose("auditor", [])
    with tenant_scope(cast.home.id):
        tenancy_ops.remove_member(
            tenant=cast.home.id, member_id=cast.home.members["operator"], actor=WHO, now=clock.now()
        )
    dispatch(cast.home)
    found = letters(cast.home)
    assert set(found) == {"owner"}
    assert found["owner"].subject == "API कुंजियाँ"
    assert "Smriti में खोलें" in found["owner"].body
    with pytest.raises(Invalid):
        choose("viewer", ["no.such"])
    with pytest.raises(Invalid):
        choose("viewer", [], language="tlh")
    with tenant_scope(cast.home.id):  # ends with the membership
        member = cast.home.members["auditor"]
        tenancy_ops.remove_member(tenant=cast.home.id, member_id=member, actor=WHO, now=clock.now())
        assert queries.wishes(tenant=cast.home.id, member_id=member).unwanted == frozenset()


def test_another_tenants_members_get_nothing(cast: Cast, dispatch: Dispatch) -> None:
    with tenant_scope(cast.home.id):
        notices.tell(
            tenant=cast.home.id, kind=KIND, to=list(cast.other.members.values()), subject="s", lines=[], link="/t/x/",
            data={}, now=clock.now(),
        )  # fmt: skip
    dispatch(cast.home)
    assert letters(cast.other) == {}


def test_a_link_leads_to_us_and_a_kind_must_be_known(house: House) -> None:
    for kind, link, error in (
        (KIND, "https://evil.example/", ValueError),
        (KIND, "//evil.example/", ValueError),
        ("no.such", "/", KeyError),
    ):
        with tenant_scope(house.id), pytest.raises(error):
            notices.tell(
                tenant=house.id, kind=kind, to=None, subject="s", lines=[], link=link, data={}, now=clock.now()
            )


def test_without_a_mail_server_e_mails_are_files(
    cast: Cast, dispatch: Dispatch, settings: Settings, tmp_path: Path
) -> None:
    settings.EMAIL_BACKEND, settings.EMAIL_FILE_PATH = "django.core.mail.backends.filebased.EmailBackend", tmp_path
    tell(cast.home, "owner")
    dispatch(cast.home)
    [file] = tmp_path.iterdir()
    assert "Subject: Payment waits" in file.read_text()


def test_a_mail_server_that_is_away_is_tried_again(cast: Cast, dispatch: Dispatch, settings: Settings) -> None:
    backend = settings.EMAIL_BACKEND
    settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = (
        "django.core.mail.backends.smtp.EmailBackend",
        "127.0.0.1",
        1,
    )
    tell(cast.home, "owner")
    dispatch(cast.home)
    settings.EMAIL_BACKEND = backend
    assert letters(cast.home) == {}
    dispatch(cast.home, hours=1)
    assert set(letters(cast.home)) == {"owner"}
