"""The template tags of every page; built in, so that no template loads them. Formatting itself is in `text`, pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID

from django import template
from django.forms import BoundField
from django.http import QueryDict
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext

from kernel.web import exhibit, jsontree, paging, states, text, unseen

register = template.Library()


@register.simple_tag
def icon(name: str, large: bool = False) -> SafeString:
    """A decorative icon of the sprite; the word beside it carries the meaning."""
    return format_html(
        '<svg class="icon{}" aria-hidden="true"><use href="{}#{}"/></svg>',
        " icon-lg" if large else "",
        static("ui/sprite.svg"),
        name,
    )


@register.simple_tag
def mark() -> SafeString:
    return format_html('<svg class="mark" aria-hidden="true"><use href="{}#mark"/></svg>', static("ui/sprite.svg"))


@register.simple_tag
def status(state: str, word: str = "", boxed: bool = False, glyph: str = "") -> SafeString:
    """Icon and word of a state, always both. `word` replaces the state's own, as in "1 min 42 s"."""
    look = states.look(state)
    return format_html(
        '<span class="status" data-state="{}"{}>{}{}</span>',
        states.tone(state),
        SafeString(" data-boxed") if boxed else "",
        icon(glyph or look.icon),
        word or look.word,
    )


@register.filter
def tone(state: str) -> str:
    return states.tone(state)


@register.simple_tag
def when(moment: datetime | None, form: str = "full") -> SafeString | str:
    """A `<time>`: `full` with date and zone, `near` without the date when it is today, `list` and `log` short for a list
    that names the zone, `clock` the time alone, `day` the date. UTC is in the title."""
    if moment is None:
        return ""
    zone = timezone.get_current_timezone()
    match form:
        case "clock":
            shown = text.clock_time(moment, zone)
        case "list":
            shown = text.list_time(moment, zone, today=datetime.now(UTC))
        case "log":
            shown = text.list_time(moment, zone, today=datetime.now(UTC), seconds=True)
        case "day":
            shown = text.day_text(moment.astimezone(zone))
        case "near":
            shown = text.moment_text(moment, zone, today=datetime.now(UTC), seconds=False)
        case _:
            shown = text.moment_text(moment, zone)
    utc = moment.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC" data-form="{}">{}</time>',
        utc.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        f"{utc:%Y-%m-%d %H:%M:%S}.{utc.microsecond // 1000:03}",
        form,
        shown,
    )


@register.simple_tag
def lasted(start: datetime | None, end: datetime | None, now: datetime) -> str:
    """How long from `start` to `end`, or until now while it goes on."""
    return text.duration((end or now) - start) if start else ""


@register.filter
def percent(value: float) -> str:
    """A length for an SVG attribute, in the notation of SVG whatever the reader's language."""
    return f"{value:g}%"


@register.filter
def lookup(words: Mapping[str, Any], key: str) -> Any:
    """The word for a key; the key itself when there is none."""
    return words.get(key, key)


@register.filter
def split(names: str) -> list[str]:
    return names.split()


@register.filter
def getlist(query: QueryDict, name: str) -> list[str]:
    return query.getlist(name)


@register.filter
def duration(span: timedelta) -> str:
    return text.duration(span)


@register.filter
def seconds(count: float) -> str:
    """A number of seconds as a duration."""
    return text.duration(timedelta(seconds=count))


@register.filter
def raw(body: object) -> bytes:
    """JSON that was kept as it came."""
    return bytes(body)  # type: ignore[call-overload,no-any-return]


@register.filter
def until(moment: datetime, now: datetime) -> str:
    """How long from now until a moment."""
    return text.duration(moment - now)


@register.filter
def grouped(value: int) -> str:
    return text.grouped(value)


@register.filter
def money(amount: str, currency: str | None) -> str:
    return text.money(amount, currency)


@register.filter
def bdi(name: str) -> SafeString:
    """A name that people chose, in a sentence: whatever direction it is written in, the words around it keep theirs."""
    return format_html("<bdi>{}</bdi>", name)


@register.filter
def bdi_list(names: Iterable[str]) -> SafeString:
    return format_html_join(", ", "<bdi>{}</bdi>", ((name,) for name in names))


@register.simple_tag
def json_exact(body: bytes) -> str:
    """All of a JSON value, nothing cut and nothing that hides."""
    return jsontree.exact(body)


@register.filter
def visible(value: str) -> str:
    """A text that others wrote, for a line: what cannot be seen in it stands as a mark."""
    return unseen.visible(value).replace("\n", " ⏎ ").replace("\t", " ")


@register.filter
def marked(value: str) -> SafeString:
    """The same with its lines, each mark with its meaning, and words of mixed letters marked."""
    return exhibit.marked(value)


@register.simple_tag
def left(moment: datetime, now: datetime) -> SafeString:
    """How long until a moment, kept up to date by the browser; what is over says so and stands still."""
    words = "|".join(
        (pgettext("days", "d"), pgettext("hours", "h"), pgettext("minutes", "min"), pgettext("seconds", "s"))
    )
    return format_html(
        '<time datetime="{}" data-left="{}" data-now="{}">{}</time>',
        moment.astimezone(UTC).isoformat(timespec="milliseconds"), words,
        now.astimezone(UTC).isoformat(timespec="milliseconds"), text.duration(max(moment - now, timedelta(0))),
    )  # fmt: skip


@register.filter
def bytesize(count: int) -> str:
    return text.size(count)


@register.filter
def shortened(value: UUID | str) -> str:
    return text.short_id(value)


@register.filter
def zone_word(zone: tzinfo) -> str:
    """`IST`: for the line that says which zone the times of a list are in."""
    return text.zone_name(datetime.now(zone))


@register.simple_tag
def ident(value: UUID | str, copy: bool = True) -> SafeString:
    """A long id, shortened, whole in its title and under the copy button."""
    whole = str(value)
    button = format_html(
        '<button type="button" data-copy="{}" aria-label="{}" hidden>{}</button>',
        whole,
        gettext("Copy %(value)s") % {"value": whole},
        icon("copy"),
    )
    return format_html('<span class="id" title="{}">{}{}</span>', whole, text.short_id(whole), button if copy else "")


@register.simple_tag
def json_tree(body: bytes, limit: int = jsontree.MAX_NODES) -> SafeString:
    return jsontree.tree(body, limit)


@register.simple_tag(takes_context=True)
def here(context: template.Context, **changes: Any) -> str:
    """The address of this page with some parameters changed; None drops one."""
    request = context["request"]
    query: QueryDict = request.GET
    return paging.link(request.path, query, **changes)


@register.inclusion_tag("components/field.html")
def field(bound: BoundField, **attributes: str) -> dict[str, Any]:
    """Label, control, hint and errors of a form field, tied together for screen readers."""
    described = [f"{bound.auto_id}_hint"] if bound.help_text else []
    attrs: dict[str, str | bool] = {"class": "input", **attributes}
    if bound.errors:
        described.insert(0, f"{bound.auto_id}_error")
        attrs["aria-invalid"] = "true"
    if described:
        attrs["aria-describedby"] = " ".join(described)
    return {"field": bound, "widget": bound.as_widget(attrs=attrs)}


@register.inclusion_tag("components/choice_field.html")
def choices(bound: BoundField, notes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A group of checkboxes or radio buttons, each with a note in small print."""
    return {"field": bound, "options": [(option, (notes or {}).get(str(option.data["value"]), "")) for option in bound]}


@register.filter
def wide(body: str | None) -> bool:
    """Whether a value needs a line of its own."""
    return len(body or "") > 40


@register.filter
def json_line(body: str) -> str:
    """JSON text on one line, cut where it gets too long to read."""
    return body if len(body) <= 200 else body[:200] + "…"
