"""What a tenant declares of its tools and workflows: the definitions, typed, and what can be computed from them alone.

A definition is the tenant's configuration and stands in clear: no personal data belongs into it. Versions are immutable.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit
from uuid import UUID
from zoneinfo import available_timezones

import msgspec
from msgspec import Meta, Raw, Struct, field

from kernel import codec
from kernel.errors import DomainError, FieldError, Invalid
from kernel.jsonwalk import pointer
from runs import patch, schemas
from runs.wire import Identifier, StepIn, Steps

MAX_DEFINITION: Final = 1024 * 1024  # bytes
MAX_BUSINESS_OBJECT: Final = 256  # characters
MAX_MIGRATIONS: Final = 100

SideEffect = Literal["none", "idempotent", "reversible", "irreversible"]
Scope = Literal["step", "run", "tenant"]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z", max_length=3)]
Money = Annotated[str, Meta(pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?\Z", max_length=19)]
Amounts = Annotated[dict[Currency, Money], Meta(max_length=50)]
Way = Annotated[
    str, Meta(min_length=1, max_length=256)
]  # a JSON pointer into the input, without the slash it begins with
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Description = Annotated[str, Meta(max_length=2000)]

_NAME_IN_TEMPLATE: Final = re.compile(r"\{([^{}]*)\}")
_BAD_ESCAPE: Final = re.compile("~(?![01])")
_AMOUNT: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,6})?")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_exact: Final = schemas.exact
_raw_members: Final = msgspec.json.Decoder(dict[str, Raw])
_raw_items: Final = msgspec.json.Decoder(list[Raw])

Definition = TypeVar("Definition", bound=Struct)


class InvalidToolInput(DomainError):
    """A tool's input does not have what its definition needs of it."""

    code = "invalid_tool_input"
    status = 422
    title = "This input does not fit the tool"


class AmountRule(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the input says how much money moves: the amount, and its currency (or which currency it always is)."""

    path: Way
    currency_path: Way | None = None
    currency: Currency | None = None


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a tool for the whole tenant. A currency that a map of amounts does not name is not permitted.

    A day is one of `time_zone`.
    """

    max_amount_per_call: Amounts = field(default_factory=dict)
    max_amount_per_day: Amounts = field(default_factory=dict)
    calls_per_minute: Count | None = None
    calls_per_day: Count | None = None
    max_in_flight: Count | None = None
    time_zone: Annotated[str, Meta(max_length=64)] = "UTC"


class RetryPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Attempts, and the cap of the wait before each: `initial_seconds * factor ** (attempt - 1)`, at most `max_seconds`."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 5
    initial_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 1.0
    factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    max_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 900.0
    deadline_seconds: Seconds | None = None


class Compensation(Struct, frozen=True, forbid_unknown_fields=True):
    """The call that takes an effect back. In `input`, a string "{input/...}" or "{output/...}" stands for that value."""

    tool: Identifier
    version: Identifier | None = None
    input: Raw = field(default_factory=lambda: Raw(b"{}"))


class Reconcile(Struct, frozen=True, forbid_unknown_fields=True):
    """How to learn what became of a call. Until `settle_seconds` after it began, "not found" proves nothing.

    `probe_url`: an https address with "{key}" in its path or query.
    """

    hint: Description = ""
    probe_url: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    settle_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    give_up_seconds: Seconds = 86_400.0


class ToolDefinition(Struct, frozen=True, forbid_unknown_fields=True):
    """`business_key`: a template such as "{payment/invoice_id}:{region}" over the input. Without it the caller names the object.

    `scope`: how far the business object is unique. `approval`: "never", "always" or the name of a policy. `redact`: JSON
    pointers. `execute_seconds`: for how long a permission to execute may be used.
    """

    side_effect: SideEffect
    description: Description = ""
    input_schema: Raw = field(default_factory=lambda: Raw(b"true"))
    output_schema: Raw = field(default_factory=lambda: Raw(b"true"))
    business_key: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    scope: Scope = "step"
    amount: AmountRule | None = None
    limits: Limits = Limits()
    approval: Identifier = "never"
    retry: RetryPolicy = RetryPolicy()
    compensation: Compensation | None = None
    reconcile: Reconcile = Reconcile()
    redact: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=64)] = []
    execute_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 60.0


@dataclass(frozen=True, slots=True)
class ToolVersion:
    """A registered tool version. `input_schema` and `output_schema` are JSON text."""

    id: UUID
    name: str
    version: str
    enabled: bool
    description: str
    side_effect: SideEffect
    business_key: str | None
    scope: Scope
    amount: AmountRule | None
    limits: Limits
    approval: str
    retry: RetryPolicy
    compensation: Compensation | None
    reconcile: Reconcile
    redact: tuple[str, ...]
    input_schema: bytes
    output_schema: bytes
    execute_seconds: float

    @classmethod
    def of(cls, *, id: UUID, name: str, version: str, enabled: bool, definition: ToolDefinition) -> "ToolVersion":
        return cls(
            id=id, name=name, version=version, enabled=enabled, description=definition.description,
            side_effect=definition.side_effect, business_key=definition.business_key, scope=definition.scope,
            amount=definition.amount, limits=definition.limits, approval=definition.approval, retry=definition.retry,
            compensation=definition.compensation, reconcile=definition.reconcile, redact=tuple(definition.redact),
            input_schema=bytes(definition.input_schema), output_schema=bytes(definition.output_schema),
            execute_seconds=definition.execute_seconds,
        )  # fmt: skip


class Migration(Struct, frozen=True, forbid_unknown_fields=True):
    """How a state of one schema version becomes one of another: JSON Patch (RFC 6902)."""

    from_: Annotated[int, Meta(ge=0, le=1_000_000)] = field(name="from")
    to: Annotated[int, Meta(ge=0, le=1_000_000)]
    patch: Raw
    description: Description = ""


class Defaults(Struct, frozen=True, forbid_unknown_fields=True):
    """What holds for the steps of a run that do not say otherwise."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 5
    retry: RetryPolicy | None = None
    deadline_seconds: Seconds | None = None


class WorkflowDefinition(Struct, frozen=True, forbid_unknown_fields=True):
    """`state_schema`: the version of the state's shape, `state_json_schema` that shape or null. `tools`: the versions it is known
    to work with. `steps`: the plan of a run that is started without one. `migrations`: how states of older shapes come to this.
    """

    description: Description = ""
    state_schema: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    state_json_schema: Raw = field(default_factory=lambda: Raw(b"null"))
    tools: Annotated[dict[Identifier, Identifier], Meta(max_length=256)] = field(default_factory=dict)
    steps: Steps | None = None
    defaults: Defaults = Defaults()
    migrations: Annotated[list[Migration], Meta(max_length=MAX_MIGRATIONS)] = []


@dataclass(frozen=True, slots=True)
class WorkflowVersion:
    """A registered workflow version. `state_json_schema` is JSON text."""

    id: UUID
    name: str
    version: str
    enabled: bool
    description: str
    state_schema: int
    state_json_schema: bytes | None
    tools: dict[str, str]
    steps: list[StepIn] | None
    defaults: Defaults
    migrations: tuple[Migration, ...]

    @classmethod
    def of(
        cls, *, id: UUID, name: str, version: str, enabled: bool, definition: WorkflowDefinition
    ) -> "WorkflowVersion":
        schema = bytes(definition.state_json_schema)
        return cls(
            id=id, name=name, version=version, enabled=enabled, description=definition.description,
            state_schema=definition.state_schema, state_json_schema=None if schema == b"null" else schema,
            tools=definition.tools, steps=definition.steps, defaults=definition.defaults,
            migrations=tuple(definition.migrations),
        )  # fmt: skip


# Any definition --------------------------------------------------------------------------------------------------------


def dump(definition: Struct) -> str:
    """A definition as stored text: its defaults written out, schemas to the letter."""
    return msgspec.json.encode(definition).decode()


def load(text: str, form: type[Definition]) -> Definition:
    return msgspec.json.decode(text, type=form)


def same(one: Struct, other: Struct) -> bool:
    """Whether two definitions are one JSON value, defaults written out."""
    return codec.canonical(msgspec.json.decode(dump(one))) == codec.canonical(msgspec.json.decode(dump(other)))


# Tools -----------------------------------------------------------------------------------------------------------------


def check_tool(definition: ToolDefinition) -> list[FieldError]:
    """What the types cannot say of a tool's definition."""
    found = schemas.check(bytes(definition.input_schema), at="/input_schema")
    found += schemas.check(bytes(definition.output_schema), at="/output_schema")
    if definition.business_key is not None:
        found += _check_template(definition.business_key)
    if definition.amount is not None:
        found += _check_amount(definition.amount)
    limits = definition.limits
    if definition.amount is None and (limits.max_amount_per_call or limits.max_amount_per_day):
        found.append(_error("/amount", "A limit of amounts needs to know where the amount stands."))
    if limits.time_zone not in _time_zones():
        found.append(_error("/limits/time_zone", "This is no time zone of the IANA database, such as Asia/Kolkata."))
    for index, place in enumerate(definition.redact):
        if not place.startswith("/") or _BAD_ESCAPE.search(place):
            found.append(_error(f"/redact/{index}", "This is no JSON pointer (RFC 6901): it begins with a slash."))
    if definition.compensation is not None:
        found += _check_compensation(definition.compensation)
    if definition.reconcile.probe_url is not None:
        found += _check_probe(definition.reconcile.probe_url)
    return found


def business_object(tool: ToolVersion, input: bytes, given: str | None) -> str:
    """What a call is about, at most MAX_BUSINESS_OBJECT characters: by the tool's template over the input, or as given.

    Values are told apart whatever they contain: a character that separates names in the template stands escaped in a value.
    Raises InvalidToolInput.
    """
    if tool.business_key is None:
        if not given:
            raise _no_input("/business_object", "This tool has no business key: name the business object.")
        text = given
    else:
        text = _fill(tool.business_key, input)
        if given is not None and given != text:
            raise _no_input(
                "/business_object", "The tool takes the business object from the input, and it is another one."
            )
    if len(text) > MAX_BUSINESS_OBJECT:
        message = f"A business object has at most {MAX_BUSINESS_OBJECT} characters."
        raise _no_input("/business_object", message, MAX_BUSINESS_OBJECT)
    return text


def amount_of(tool: ToolVersion, input: bytes) -> tuple[Decimal, str] | None:
    """Amount and currency of a call; None for a tool without amounts. Raises InvalidToolInput."""
    rule = tool.amount
    if rule is None:
        return None
    raw = _at(input, rule.path)
    amount = None if raw is None else _decimal(_exact.decode(raw))
    if amount is None:
        message = "This must be an amount of 0 or more with at most 18 digits, 6 of them decimals; as text or a number."
        raise _no_input(f"/input/{rule.path}", message)
    if rule.currency is not None:
        return amount, rule.currency
    assert rule.currency_path is not None
    raw = _at(input, rule.currency_path)
    currency = None if raw is None else _exact.decode(raw)
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        raise _no_input(f"/input/{rule.currency_path}", "This must be a currency, such as INR.")
    return amount, currency


def compensation_input(tool: ToolVersion, input: bytes, output: bytes) -> bytes:
    """The input of the call that takes an effect back, as JSON. Raises InvalidToolInput when a value it needs is missing."""
    assert tool.compensation is not None
    sources = {"input": input, "output": output}

    def filled(value: Any) -> Any:
        match value:
            case dict():
                return {name: filled(child) for name, child in value.items()}
            case list():
                return [filled(child) for child in value]
            case str() if (place := _place(value)) is not None:
                source, way = place
                found = sources[source] if way is None else _at(sources[source], way)
                if not found:
                    raise _no_input(
                        f"/{source}" + ("" if way is None else f"/{way}"), "The compensation needs this value."
                    )
                return Raw(found)
            case Decimal():
                return Raw(str(value).encode())
        return value

    return msgspec.json.encode(filled(_exact.decode(tool.compensation.input)))


def _place(value: str) -> tuple[str, str | None] | None:
    """Where a string of a compensation's template points: source, and way into it."""
    match = _NAME_IN_TEMPLATE.fullmatch(value)
    if match is None:
        return None
    source, slash, way = match[1].partition("/")
    return (source, way if slash else None) if source in ("input", "output") else None


def _check_template(template: str) -> list[FieldError]:
    at = "/business_key"
    parts = _NAME_IN_TEMPLATE.split(template)
    if len(parts) == 1:
        return [_error(at, "This names nothing of the input: write {name}.")]
    if any("{" in text or "}" in text for text in parts[0::2]):
        return [_error(at, "A brace opens or closes a name.")]
    if any(not text for text in parts[2:-1:2]):
        return [_error(at, "Between two names stands a character that keeps them apart.")]
    return [found for way in parts[1::2] for found in _check_way(at, way)]


def _check_way(at: str, way: str) -> list[FieldError]:
    if not way or way.startswith("/") or _BAD_ESCAPE.search(way):
        return [_error(at, "A name is a JSON pointer (RFC 6901) without the slash it begins with, such as payment/id.")]
    return []


def _check_amount(rule: AmountRule) -> list[FieldError]:
    found = _check_way("/amount/path", rule.path)
    if (rule.currency is None) == (rule.currency_path is None):
        found.append(_error("/amount", "Say either which currency it is, or where the input names it."))
    if rule.currency_path is not None:
        found += _check_way("/amount/currency_path", rule.currency_path)
    return found


def _check_compensation(compensation: Compensation) -> list[FieldError]:
    found: list[FieldError] = []
    waiting = [("/compensation/input", _exact.decode(compensation.input))]
    while waiting:
        at, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(at + pointer(name), child) for name, child in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{at}/{index}", child) for index, child in enumerate(value)]
        elif isinstance(value, str) and _NAME_IN_TEMPLATE.fullmatch(value):
            place = _place(value)
            if place is None:
                found.append(_error(at, "A value is taken from {input/...} or {output/...}."))
            elif place[1] is not None:
                found += _check_way(at, place[1])
    return found


def _check_probe(url: str) -> list[FieldError]:
    at = "/reconcile/probe_url"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return [_error(at, "This is no address.")]
    if parts.scheme != "https" or not host or parts.username is not None or port == 0 or not url.isascii():
        return [_error(at, "The probe is an https address without a user.")]
    if not url.isprintable() or " " in url or "\\" in url or parts.fragment:
        return [_error(at, "This is no address.")]
    asked = f"{parts.path}?{parts.query}"
    if "{key}" not in asked or re.search(r"[{}]", url.replace("{key}", "")) or "{key}" in parts.netloc:
        return [_error(at, "The key stands as {key} in its path or query, and nothing else in braces.")]
    return []


def _fill(template: str, input: bytes) -> str:
    parts = _NAME_IN_TEMPLATE.split(template)
    separators = set("".join(parts[2:-1:2]))
    text = []
    for index, part in enumerate(parts):
        if index % 2:
            raw = _at(input, part)
            text.append(_escape(_scalar(part, raw), separators))
        else:
            text.append(part)
    return "".join(text)


def _escape(value: str, separators: set[str]) -> str:
    if not separators:
        return value
    reserved = separators | {"%"}
    return "".join(f"%{ord(sign):02X}" if sign in reserved else sign for sign in value)


def _scalar(way: str, raw: bytes | None) -> str:
    value = None if raw is None else _exact.decode(raw)
    if isinstance(value, bool):
        return "true" if value else "false"
    if (isinstance(value, str) and value) or isinstance(value, int):
        return str(value)
    raise _no_input(f"/input/{way}", "The business key needs a text, an integer, true or false here.")


def _at(document: bytes, way: str) -> bytes | None:
    """The text of the value that a way leads to; None when there is none."""
    text = document
    for token in way.split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        try:
            match text.lstrip()[:1]:
                case b"{":
                    text = bytes(_raw_members.decode(text)[name])
                case b"[" if name.isascii() and name.isdigit() and (name == "0" or name[0] != "0"):
                    text = bytes(_raw_items.decode(text)[int(name[:9])])
                case _:
                    return None
        except LookupError:
            return None
    return text


def _decimal(value: Any) -> Decimal | None:
    """An amount of 0 or more with at most 18 digits, 6 of them decimals; None for anything else."""
    if isinstance(value, str):
        value = Decimal(value) if _AMOUNT.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    value = Decimal(value)
    if not value:
        return Decimal(0)
    if not value.is_finite() or value < 0 or not -6 <= value.adjusted() <= 17:
        return None
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    zeros = next(index for index, digit in enumerate(reversed(digits)) if digit)
    decimals = max(0, -exponent - zeros)
    return value if decimals <= 6 and max(0, value.adjusted() + 1) + decimals <= 18 else None


@cache
def _time_zones() -> frozenset[str]:
    return frozenset(available_timezones())


# Workflows ---------------------------------------------------------------------------------------------------------------


def check_workflow(definition: WorkflowDefinition) -> list[FieldError]:
    """What the types cannot say of a workflow's definition."""
    found = []
    if bytes(definition.state_json_schema) != b"null":
        found += schemas.check(bytes(definition.state_json_schema), at="/state_json_schema")
    found += check_plan(definition.steps or [])
    ways: set[tuple[int, int]] = set()
    for index, migration in enumerate(definition.migrations):
        found += _check_migration(f"/migrations/{index}", migration, ways)
        ways.add((migration.from_, migration.to))
    return found


def check_plan(steps: list[StepIn]) -> list[FieldError]:
    """A step depends only on steps before it, which keeps a plan free of cycles."""
    found = []
    known: set[str] = set()
    for index, step in enumerate(steps):
        if step.name in known:
            found.append(_error(f"/steps/{index}/name", f"There are two steps {step.name!r}."))
        for place, name in enumerate(step.depends_on):
            if name not in known:
                message = f"Step {name!r} does not stand earlier in the plan."
                found.append(_error(f"/steps/{index}/depends_on/{place}", message))
        known.add(step.name)
    return found


def _check_migration(at: str, migration: Migration, ways: set[tuple[int, int]]) -> list[FieldError]:
    if migration.from_ == migration.to:
        return [_error(f"{at}/to", "A migration leads to another schema version.")]
    if (migration.from_, migration.to) in ways:
        return [_error(f"{at}/to", f"There are two migrations from {migration.from_} to {migration.to}.")]
    try:
        operations = patch.parse(bytes(migration.patch))
    except patch.PatchConflict as error:
        return [
            FieldError(f"{at}{field.path.removeprefix('/checkpoint')}", "invalid", field.message)
            for field in error.fields
        ]
    except msgspec.ValidationError:
        return [_error(f"{at}/patch", "This is no JSON Patch (RFC 6902): a list of operations.")]
    if len(operations) > patch.MAX_OPERATIONS:
        message = f"A migration may have at most {patch.MAX_OPERATIONS} operations."
        return [FieldError(f"{at}/patch", "too_long", message, patch.MAX_OPERATIONS)]
    return []


# Refusals ----------------------------------------------------------------------------------------------------------------


def _no_input(path: str, message: str, limit: int | None = None) -> InvalidToolInput:
    return InvalidToolInput(message, fields=(FieldError(path, "invalid_tool_input", message, limit),))


def _error(path: str, message: str) -> FieldError:
    return FieldError(path, "invalid", message)


def refuse(found: list[FieldError]) -> None:
    """Raise Invalid when a check found something."""
    if found:
        raise Invalid(f"{found[0].path}: {found[0].message}", fields=tuple(found))
