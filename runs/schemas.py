"""JSON Schema 2020-12 over raw JSON: checked when it is registered, compiled once, and bounded in what a validation may cost.

Invariants: nothing is ever fetched (references stay within the schema); patterns run on an engine that is linear in the text;
numbers keep all their digits; and no message repeats a value.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from kernel import codec
from kernel.errors import FieldError
from kernel.jsonwalk import pointer

MAX_SCHEMA: Final = 256 * 1024  # bytes
MAX_NODES: Final = 2000  # subschemas
MAX_PATTERNS: Final = 100
MAX_ERRORS: Final = 20
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
# Evaluations of subschemas: about 15 ns each. At one value of a document eight levels deep, and in one validation.
_MAX_BRANCHING: Final = 100_000
_MAX_COST: Final = 20_000_000
_MAX_EDGES: Final = 20_000  # of the analysis itself
_MAX_LISTED: Final = 200_000  # above it only the first error is looked for
_CAP: Final = 10**12
_REGEX: Final = jsonschema_rs.RegexOptions(size_limit=4 * 1024 * 1024, dfa_size_limit=4 * 1024 * 1024)

_HERE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_HERE: Final = ("not", "if", "then", "else")
_HERE_MAPS: Final = ("dependentSchemas",)
_BELOW: Final = (
    "additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems", "contains",
)  # fmt: skip


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except (
        InvalidOperation
    ):  # an exponent beyond 18 digits: no reader tells this from 0, and JSON of ours has nothing above 1e308
        return Decimal(0)


exact: Final = msgspec.json.Decoder(float_hook=_number)


class _Refused(Exception):
    """A schema that is valid and yet not taken; `way` leads to the offending keyword."""

    def __init__(self, way: str, code: str, message: str, limit: int | str | None = None) -> None:
        self.way, self.code, self.message, self.limit = way, code, message, limit


@dataclass(frozen=True, slots=True)
class Compiled:
    """`costs[d]`: how often subschemas may be evaluated at one value of a document of `d` levels; the last holds for more."""

    validator: jsonschema_rs.Validator
    costs: tuple[int, ...]

    def cost(self, depth: int) -> int:
        return self.costs[min(depth, len(self.costs) - 1)]


def check(schema: bytes, *, at: str) -> list[FieldError]:
    """What keeps a schema from being registered; `at` is the pointer of its place in the request."""
    if len(schema) > MAX_SCHEMA:
        message = f"A schema may have at most {MAX_SCHEMA} bytes."
        return [FieldError(at, "too_long", message, MAX_SCHEMA)]
    try:
        _compile(schema)
    except _Refused as refused:
        return [FieldError(at + refused.way, refused.code, refused.message, refused.limit)]
    except jsonschema_rs.ValidationError as error:
        return [FieldError(at + pointer(*error.instance_path), "invalid_schema", _about(error))]
    except ValueError:
        return [FieldError(at, "invalid_schema", "This is no JSON Schema.")]
    return []


def errors(schema: bytes, value: bytes, *, at: str = "") -> list[FieldError]:
    """How a JSON text breaks a registered schema, at most MAX_ERRORS; each error with its pointer behind `at`, and the limit."""
    compiled = _compile(schema)
    cost = compiled.cost(codec.depth(value)) * (1 + value.count(b",") + value.count(b"{") + value.count(b"["))
    if cost > _MAX_COST:
        message = "Checking this value against the schema would cost too much: make it smaller or less deep."
        return [FieldError(at, "too_complex", message)]
    instance = exact.decode(value)
    try:
        compiled.validator.validate(instance)
    except jsonschema_rs.ValidationError as first:
        found = compiled.validator.iter_errors(instance) if cost <= _MAX_LISTED else iter([first])
        return [field for error in found for field in _fields(error, at)][:MAX_ERRORS]
    return []


@lru_cache(maxsize=512)
def _compile(schema: bytes) -> Compiled:
    value = exact.decode(schema)
    if not isinstance(value, dict | bool):
        raise _Refused("", "invalid_schema", "A schema is an object, or true or false.")
    costs = _costs(value)
    validator = jsonschema_rs.Draft202012Validator(
        schema.decode(), pattern_options=_REGEX, offline=True, validate_formats=True
    )
    return Compiled(validator, costs)


# What a validation can cost --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Node:
    """A subschema: those applied to the same value, and those applied to a member or element (None: to any of them).

    `weight`: what it costs by itself; a list of allowed values or required names is gone through.
    """

    weight: int
    here: tuple[str, ...]
    below: tuple[tuple[str | None, str], ...]


def _costs(schema: Any) -> tuple[int, ...]:
    """The bound on evaluations for each depth of a document. Raises _Refused for a schema that may cost too much."""
    nodes = _Graph(schema).nodes
    flat = _flatten(nodes)
    applied = {"", *(target for node in nodes.values() for _, target in node.below)}
    flat = {way: found for way, found in flat.items() if way in applied}
    levels = [{way: weight for way, (weight, _) in flat.items()}]
    while len(levels) <= 64:
        last = levels[-1]
        level = {}
        for way, (weight, buckets) in flat.items():
            always = _sum(buckets.get(None, {}), last)
            most = max((_sum(found, last) for key, found in buckets.items() if key is not None), default=0)
            level[way] = min(_CAP, weight + always + most)
        if level == last:
            break
        levels.append(level)
    costs = tuple(level[""] for level in levels)
    if costs[min(8, len(costs) - 1)] > _MAX_BRANCHING:
        message = "Its subschemas multiply: a document of eight levels would cost too much to check."
        raise _Refused("", "too_complex", message, _MAX_BRANCHING)
    return costs


def _sum(found: Counter[str] | dict[str, int], last: dict[str, int]) -> int:
    return min(_CAP, sum(count * last[way] for way, count in found.items()))


def _flatten(nodes: dict[str, _Node]) -> dict[str, tuple[int, dict[str | None, Counter[str]]]]:
    """For each subschema: how many are evaluated at the same value, and how often each is applied to a member."""
    done: dict[str, tuple[int, dict[str | None, Counter[str]]]] = {}
    edges = 0
    for start in nodes:
        stack, open_ways = [(start, False)], set()
        while stack:
            way, ready = stack.pop()
            if way in done:
                continue
            if not ready:
                if way in open_ways:
                    raise _Refused(way, "invalid_schema", "This schema refers to itself without going deeper.")
                open_ways.add(way)
                stack.append((way, True))
                for here in nodes[way].here:
                    if here in open_ways and here not in done:
                        raise _Refused(here, "invalid_schema", "This schema refers to itself without going deeper.")
                    stack.append((here, False))
                continue
            open_ways.discard(way)
            weight = nodes[way].weight
            buckets: dict[str | None, Counter[str]] = {}
            for key, target in nodes[way].below:
                buckets.setdefault(key, Counter())[target] += 1
            for here in nodes[way].here:
                more, found = done[here]
                weight = min(_CAP, weight + more)
                for key, counter in found.items():
                    mine = buckets.setdefault(key, Counter())
                    for target, count in counter.items():
                        mine[target] = min(_CAP, mine[target] + count)
            done[way] = (weight, buckets)
            edges += sum(len(found) for found in buckets.values())
            if edges > _MAX_EDGES:
                raise _Refused("", "too_complex", "Its subschemas refer to each other too often.")
    return done


class _Graph:
    """Every subschema that is reached from the root, by its pointer."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.nodes: dict[str, _Node] = {}
        self.anchors: dict[str, str] = {}
        self.patterns = 0
        self._find_anchors(schema)
        waiting = [""]
        while waiting:
            way = waiting.pop()
            if way not in self.nodes:
                node = self.nodes[way] = self._node(way)
                if len(self.nodes) > MAX_NODES:
                    message = f"A schema may have at most {MAX_NODES} subschemas."
                    raise _Refused("", "too_complex", message, MAX_NODES)
                waiting += [*node.here, *(target for _, target in node.below)]

    def _node(self, way: str) -> _Node:
        value = self._reach(way)
        if isinstance(value, bool):
            return _Node(1, (), ())
        if not isinstance(value, dict):
            raise _Refused(way, "invalid_schema", "A schema is an object, or true or false.")
        self._refuse_what_leads_outside(way, value)
        below: list[tuple[str | None, str]] = [(None, f"{way}/{word}") for word in _BELOW if word in value]
        for word in ("properties", "patternProperties"):
            for name in _dict(value.get(word)):
                below.append((name if word == "properties" else None, f"{way}/{word}{pointer(name)}"))
        below += [(str(index), f"{way}/prefixItems/{index}") for index in range(len(_list(value.get("prefixItems"))))]
        self.patterns += len(_dict(value.get("patternProperties"))) + ("pattern" in value)
        if self.patterns > MAX_PATTERNS:
            message = f"A schema may have at most {MAX_PATTERNS} patterns."
            raise _Refused(way, "too_complex", message, MAX_PATTERNS)
        here = [f"{way}/{word}" for word in _HERE if word in value]
        here += [f"{way}/{word}/{index}" for word in _HERE_LISTS for index in range(len(_list(value.get(word))))]
        here += [f"{way}/{word}{pointer(name)}" for word in _HERE_MAPS for name in _dict(value.get(word))]
        here += [self._target(way, word, value[word]) for word in ("$ref", "$dynamicRef") if word in value]
        if "unevaluatedProperties" in value or "unevaluatedItems" in value:
            here += here  # once to judge the value, once to learn what was evaluated
        weight = 1 + (len(_list(value.get("enum"))) + len(_list(value.get("required")))) // 4
        return _Node(weight, tuple(here), tuple(below))

    def _refuse_what_leads_outside(self, way: str, value: dict[str, Any]) -> None:
        if value.get("$schema", DIALECT) not in (DIALECT, DIALECT + "#"):
            raise _Refused(f"{way}/$schema", "invalid_schema", f"The dialect is {DIALECT}.")
        if "$id" in value and way:
            raise _Refused(f"{way}/$id", "invalid_schema", "Only the whole schema may have an $id.")

    def _target(self, way: str, word: str, reference: Any) -> str:
        if not isinstance(reference, str) or not reference.startswith("#"):
            message = "A reference stays within the schema: it begins with '#'. Nothing is fetched."
            raise _Refused(f"{way}/{word}", "remote_reference", message)
        fragment = unquote(reference[1:])
        target = fragment if not fragment or fragment.startswith("/") else self.anchors.get(fragment)
        if target is None or self._reach(target) is None:
            raise _Refused(f"{way}/{word}", "invalid_schema", "This reference leads nowhere.")
        return target

    def _reach(self, way: str) -> Any:
        value = self.schema
        for token in way.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict):
                value = value.get(name)
            elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(value):
                value = value[int(name)]
            else:
                return None
        return value

    def _find_anchors(self, value: Any) -> None:
        waiting = [("", value)]
        while waiting:
            way, value = waiting.pop()
            for name, child in _dict(value).items():
                if name in ("$anchor", "$dynamicAnchor") and isinstance(child, str):
                    self.anchors.setdefault(child, way)
                waiting.append((way + pointer(name), child))
            waiting += [(f"{way}/{index}", child) for index, child in enumerate(_list(value))]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# What is said of an error ----------------------------------------------------------------------------------------------

_SENTENCES: Final = {
    "type": "This must be {types}.",
    "enum": "This is none of the allowed values.",
    "const": "This is not the allowed value.",
    "maximum": "This must be at most {limit}.",
    "exclusiveMaximum": "This must be less than {limit}.",
    "minimum": "This must be at least {limit}.",
    "exclusiveMinimum": "This must be more than {limit}.",
    "multipleOf": "This must be a multiple of {multiple_of}.",
    "maxLength": "This may have at most {limit} characters.",
    "minLength": "This must have at least {limit} characters.",
    "maxItems": "This may have at most {limit} items.",
    "minItems": "This must have at least {limit} items.",
    "maxProperties": "This may have at most {limit} members.",
    "minProperties": "This must have at least {limit} members.",
    "uniqueItems": "Its items must differ.",
    "pattern": "This must match {pattern}.",
    "format": "This is not of the format {format}.",
    "anyOf": "This fits none of the alternatives.",
    "oneOf": "This must fit exactly one of the alternatives.",
    "not": "This fits what is excluded.",
    "contains": "No item fits what it must contain.",
    "propertyNames": "One of its names is not allowed.",
}
_LIMITS: Final = ("limit", "multiple_of", "pattern", "format", "types")


def _fields(error: jsonschema_rs.ValidationError, at: str) -> Iterator[FieldError]:
    path = at + pointer(*error.instance_path)
    keyword, said = error.kind.name, error.kind.as_dict()
    unexpected = said.get("unexpected")
    if unexpected is not None:
        for name in unexpected[:MAX_ERRORS]:
            yield FieldError(path + pointer(name), "unknown_field", "There is no such field.")
    elif keyword in ("required", "dependentRequired") and "property" in said:
        yield FieldError(path + pointer(said["property"]), "missing_field", "This field is required.")
    else:
        limit = next((said[name] for name in _LIMITS if name in said), None)
        code = re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), keyword)
        yield FieldError(path, code, _about(error), _plain(limit))


def _about(error: jsonschema_rs.ValidationError) -> str:
    said = {name: _plain(value) for name, value in error.kind.as_dict().items()}
    sentence = _SENTENCES.get(error.kind.name)
    try:
        return "This is not allowed here." if sentence is None else sentence.format(**said)
    except KeyError:
        return "This is not acceptable."


def _plain(limit: Any) -> int | float | str | None:
    """A limit as a problem shows it."""
    if isinstance(limit, list):
        return " or ".join(str(item) for item in limit)
    if isinstance(limit, float) and not math.isfinite(limit):
        return str(limit)
    return limit if limit is None or isinstance(limit, int | float | str) else str(limit)
