"""Sending an e-mail, as the outbox asks. Address and wish are read when it is sent: who left, or wants no more, gets none."""

import smtplib
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import get_language_bidi, gettext

from kernel.context import tenant_scope
from kernel.outbox import Dead, Delivered, Message, Outcome, Retry
from notices import queries
from tenancy import queries as tenancy_queries
from tenancy.models import Member

TOPIC: Final = "notices.email"
_FOR_GOOD: Final = 500


class Letter(msgspec.Struct):
    """What the outbox keeps, sealed."""

    member: UUID
    kind: str
    language: str
    subject: str
    lines: list[str]
    link: str


def deliver(message: Message) -> Outcome:
    """Send once. A mail server that refuses the recipient for good ends it."""
    letter = msgspec.json.decode(message.body, type=Letter)
    with tenant_scope(message.tenant):
        member: Member | None = Member.objects.filter(id=letter.member).first()
        if member is None or letter.kind in queries.wishes(tenant=message.tenant, member_id=letter.member).unwanted:
            return Delivered()
        tenant = tenancy_queries.get_tenant(tenant=message.tenant)
    mail = compose(message_id=message.id, letter=letter, to=member.email, slug=tenant.slug, tenant_name=tenant.name)
    try:
        mail.send()
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        return Dead("recipient_refused") if min(codes, default=0) >= _FOR_GOOD else Retry("recipient_refused")
    except smtplib.SMTPDataError as error:
        return Dead("mail_refused") if error.smtp_code >= _FOR_GOOD else Retry("mail_refused")
    except (smtplib.SMTPException, OSError):
        return Retry("mail_not_sent")
    return Delivered()


def compose(*, message_id: UUID, letter: Letter, to: str, slug: str, tenant_name: str) -> EmailMultiAlternatives:
    """The e-mail, as text and as HTML. Its id stays the same however often it is sent."""
    wishes = f"{settings.BASE_URL}/t/{slug}/notifications/"
    with translation.override(letter.language):
        parts = {
            "language": letter.language,
            "direction": "rtl" if get_language_bidi() else "ltr",
            "subject": letter.subject,
            "lines": letter.lines,
            "link": settings.BASE_URL + letter.link,
            "wishes": wishes,
            "open": gettext("Open in Smriti"),
            "decides": gettext("This link opens a page; it decides nothing by itself."),
            "why": gettext("You get this as a member of %(tenant)s.") % {"tenant": tenant_name},
            "choose": gettext("Choose which e-mails you get"),
        }
        text = render_to_string("email/notice.txt", parts)
        html = render_to_string("email/notice.html", parts)
    host = urlsplit(settings.BASE_URL).hostname
    mail = EmailMultiAlternatives(
        subject=letter.subject,
        body=text,
        to=[to],
        headers={
            "Message-ID": f"<{message_id}@{host}>",
            "List-Unsubscribe": f"<{wishes}>",
            "Auto-Submitted": "auto-generated",
        },
    )
    mail.attach_alternative(html, "text/html")
    return mail
