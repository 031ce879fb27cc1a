"""The shared state as raw JSON, changed by JSON Patch (RFC 6902).

Values stay the bytes that the client sent, at every depth: a number keeps its digits, a key its place. Only the levels on the
way to a changed value are taken apart. A *channel* is a top-level name of the state.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
import orjson
from msgspec import Raw

from kernel import codec
from kernel.errors import DomainError, FieldError

MAX_DIFF_DEPTH: Final = 8
MAX_OPERATIONS: Final = 10_000
MAX_DEPTH: Final = 62  # levels of a state: it can be sent back whole within the 64 of a request
_MAX_SENT: Final = 60  # levels of a value in a patch that was sent: 64 without those around it
_BAD_ESCAPE: Final = re.compile("~(?![01])")


class PatchConflict(DomainError):
    """A patch does not fit the state it is applied to."""

    code = "patch_conflict"
    status = 409
    title = "The patch does not fit the state"


class Operation(msgspec.Struct, forbid_unknown_fields=True):
    op: Literal["add", "replace", "remove", "test", "move", "copy"]
    path: str
    value: Raw = Raw()
    from_: str | None = msgspec.field(default=None, name="from")


@dataclass(slots=True)
class Channels:
    """What a patch of top-level operations takes for granted of channels, and what it makes of them."""

    lists: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    appended: set[str] = field(default_factory=set)
    required: set[str] = field(default_factory=set)


State = dict[str, Raw]

_operations: Final = msgspec.json.Decoder(list[Operation])
_object: Final = msgspec.json.Decoder(dict[str, Raw])
_array: Final = msgspec.json.Decoder(list[Raw])
_encode: Final = msgspec.json.Encoder(enc_hook=lambda grown: grown.whole()).encode


def parse(patch: bytes) -> list[Operation]:
    """The operations of a patch; each has the members RFC 6902 asks of it. Raises msgspec.ValidationError, PatchConflict."""
    operations = _operations.decode(patch)
    for index, operation in enumerate(operations):
        if operation.op in ("add", "replace", "test") and not operation.value:
            raise _conflict(index, "value", "This operation needs a value.")
        if operation.op in ("move", "copy") and operation.from_ is None:
            raise _conflict(index, "from", "This operation needs a source.")
        for member, pointer in (("path", operation.path), ("from", operation.from_)):
            if pointer and (pointer[0] != "/" or ("~" in pointer and _BAD_ESCAPE.search(pointer))):
                raise _conflict(
                    index, member, "A pointer begins with a slash; a tilde stands before 0 or 1 (RFC 6901)."
                )
    return operations


def channels_of(state: bytes) -> Channels:
    found = Channels()
    for name, value in _object.decode(state).items():
        (found.lists if is_list(value) else found.values).add(name)
    return found


def top_level(operations: Sequence[Operation]) -> Channels | None:
    """The effect of a patch on channels when it can be told without the state; None when the state must be read.

    That is so for whole channels added, replaced or removed, and for elements appended to a channel.
    """
    found = Channels()
    for operation in operations:
        if operation.op not in ("add", "replace", "remove"):
            return None
        name, slash, rest = operation.path[1:].partition("/")
        if not operation.path or (slash and (rest != "-" or operation.op != "add")):
            return None
        name = _unescape(name)
        if slash:
            if name in found.values or name in found.removed:
                return None
            if name not in found.lists:
                found.appended.add(name)
            continue
        if operation.op != "add" and name not in found.lists and name not in found.values:
            if name in found.removed:
                return None
            found.required.add(name)
        for names in (found.lists, found.values, found.removed):
            names.discard(name)
        if operation.op == "remove":
            found.removed.add(name)
        else:
            (found.lists if is_list(operation.value) else found.values).add(name)
    return found


def difference(old: State, new: State) -> Channels:
    """The effect on channels of going from one state to another."""
    found = Channels(removed=set(old) - set(new))
    for name, value in new.items():
        if name not in old or is_list(old[name]) != is_list(value):
            (found.lists if is_list(value) else found.values).add(name)
    return found


def load(state: bytes) -> State:
    return _object.decode(state)


def dump(state: State) -> bytes:
    """The JSON text of a state; members in the order in which they came."""
    return _encode(state)


def apply(state: State, operations: Iterable[Operation], *, limit: int | None = None) -> State:
    """The state after a patch, all or nothing: `state` itself is not changed. Raises PatchConflict naming the operation.

    Only what a path leads through is taken apart, and once for all operations; elements appended to a list do not even take
    the list apart. `limit` is for a patch that was sent: the new state may have so many bytes, MAX_DEPTH levels, and be made by
    MAX_OPERATIONS, of which `move`, `copy` and `test` may touch `limit` bytes in all (each copy could double the state).
    """
    root: dict[str, Any] = dict(state)
    left = limit
    for index, operation in enumerate(operations):
        try:
            if limit is not None and index == MAX_OPERATIONS:
                raise LookupError(f"is one operation more than the {MAX_OPERATIONS} that a patch may have")
            tokens, value = _tokens(operation.path), operation.value
            if operation.op in ("move", "copy", "test"):
                source = tokens if operation.op == "test" else _tokens(operation.from_ or "")
                found = _read(root, source)
                left = None if left is None else left - len(memoryview(found))
                if left is not None and left < 0:
                    raise LookupError("makes this patch touch too much of the state")
                if operation.op == "test":
                    if not _same(found, value):
                        raise LookupError("does not have the tested value")
                    continue
                value = found
                if operation.op == "move":
                    if tokens[: len(source)] == source and tokens != source:
                        raise LookupError("lies within its own source")
                    _remove(root, source)
            if operation.op == "remove":
                _remove(root, tokens)
                continue
            if limit is not None and (operation.from_ is not None or len(tokens) + _MAX_SENT > MAX_DEPTH):
                _check_depth(tokens, value)
            if tokens:
                _put(root, tokens, value, insert=operation.op != "replace")
            elif _is_object(value):
                root = _object.decode(value)
            else:
                raise LookupError("must stay an object")
        except LookupError as error:
            raise _conflict(index, "path", f"{operation.path[:256]!r} {error.args[0]}.") from error
    after = {name: node if type(node) is Raw else Raw(_encode(node)) for name, node in root.items()}
    if limit is not None and sum(len(memoryview(value)) for value in after.values()) > limit:
        raise PatchConflict(f"The state would be larger than {limit} bytes.")
    return after


def diff(old: State, new: State) -> bytes:
    """A patch from one state to another: what was appended to a list is sent as that."""
    operations: list[dict[str, object]] = []
    _diff_objects("", old, new, operations, MAX_DIFF_DEPTH)
    return _encode(operations)


def is_list(value: Raw | bytes) -> bool:
    return bytes(memoryview(value)[:64]).lstrip()[:1] == b"["


def _is_object(value: Raw) -> bool:
    return bytes(memoryview(value)[:64]).lstrip()[:1] == b"{"


class _Grown:
    """A list that was only appended to: its text as it was, and what came after."""

    __slots__ = ("more", "text")

    def __init__(self, text: Raw, value: Raw) -> None:
        self.text, self.more = text, [value]

    def whole(self) -> Raw:
        body = bytes(self.text).strip()[1:-1].strip()
        return Raw(b"[" + b",".join([body, *map(bytes, self.more)] if body else list(map(bytes, self.more))) + b"]")


def _walk(root: dict[str, Any], tokens: list[str]) -> dict[str, Any] | list[Any]:
    """The members or elements that a path leads to, taken apart in place like all on the way."""
    branch: dict[str, Any] | list[Any] = root
    for token in tokens:
        key = _key(branch, token)
        node = branch[key]  # type: ignore[index]
        if type(node) is _Grown:
            node = [*_array.decode(node.text), *node.more]
        elif type(node) is Raw:
            node = _object.decode(node) if _is_object(node) else _array.decode(node) if is_list(node) else None
        if node is None:
            raise LookupError("does not exist")
        branch[key] = node  # type: ignore[index]
        branch = node
    return branch


def _key(branch: dict[str, Any] | list[Any], token: str) -> str | int:
    if isinstance(branch, list):
        return _index(token, len(branch) - 1)
    if token not in branch:
        raise LookupError("does not exist")
    return token


def _read(root: dict[str, Any], tokens: list[str]) -> Raw:
    """What a path leads to as text."""
    if not tokens:
        return Raw(_encode(root))
    branch = _walk(root, tokens[:-1])
    key = _key(branch, tokens[-1])
    node = branch[key]  # type: ignore[index]
    if type(node) is not Raw:
        node = branch[key] = Raw(_encode(node))  # type: ignore[index]
    return node


def _put(root: dict[str, Any], tokens: list[str], value: Raw, *, insert: bool) -> None:
    *way, last = tokens
    if last == "-" and insert and way:
        branch = _walk(root, way[:-1])
        key = _key(branch, way[-1])
        node = branch[key]  # type: ignore[index]
        if type(node) is _Grown:
            node.more.append(value)
            return
        if type(node) is Raw and is_list(node):
            branch[key] = _Grown(node, value)  # type: ignore[index]
            return
    branch = _walk(root, way)
    if isinstance(branch, list) and insert:
        branch.insert(len(branch) if last == "-" else _index(last, len(branch)), value)
    else:
        branch[last if insert else _key(branch, last)] = value  # type: ignore[index]


def _remove(root: dict[str, Any], tokens: list[str]) -> None:
    if not tokens:
        raise LookupError("is the whole state")
    branch = _walk(root, tokens[:-1])
    del branch[_key(branch, tokens[-1])]  # type: ignore[arg-type]


def _same(one: Raw, other: Raw) -> bool:
    """Whether two texts are one JSON value; numbers are compared as numbers (RFC 6902, 4.6)."""
    if bytes(one) == bytes(other):
        return True
    return codec.canonical(orjson.loads(bytes(one))) == codec.canonical(orjson.loads(bytes(other)))


def _check_depth(tokens: list[str], value: Raw) -> None:
    if len(tokens) + codec.depth(bytes(value)) > MAX_DEPTH:
        raise LookupError(f"would lie deeper than {MAX_DEPTH} levels")


def _index(token: str, last: int) -> int:
    if not (token.isascii() and token.isdigit()) or (token != "0" and token.startswith("0")):
        raise LookupError("does not exist")
    if len(token) > 9 or int(token) > last:
        raise LookupError("does not exist")
    return int(token)


def _diff_objects(path: str, old: State, new: State, operations: list[dict[str, object]], depth: int) -> None:
    for name in old:
        if name not in new:
            operations.append({"op": "remove", "path": f"{path}/{_escape(name)}"})
    for name, value in new.items():
        where = f"{path}/{_escape(name)}"
        if name not in old:
            operations.append({"op": "add", "path": where, "value": value})
        elif bytes(old[name]) != bytes(value):
            _diff_values(where, old[name], value, operations, depth - 1)


def _diff_values(path: str, old: Raw, new: Raw, operations: list[dict[str, object]], depth: int) -> None:
    if depth and _is_object(old) and _is_object(new):
        _diff_objects(path, _object.decode(old), _object.decode(new), operations, depth)
        return
    if is_list(old) and is_list(new):
        before, after = _array.decode(old), _array.decode(new)
        if len(before) < len(after) and all(bytes(x) == bytes(y) for x, y in zip(before, after, strict=False)):
            operations.extend({"op": "add", "path": f"{path}/-", "value": value} for value in after[len(before) :])
            return
        if depth and len(before) == len(after):
            changed = [i for i, pair in enumerate(zip(before, after, strict=True)) if bytes(pair[0]) != bytes(pair[1])]
            if len(changed) * 2 < len(after):
                for i in changed:
                    _diff_values(f"{path}/{i}", before[i], after[i], operations, depth - 1)
                return
    operations.append({"op": "replace", "path": path, "value": new})


def _tokens(path: str) -> list[str]:
    return [_unescape(token) for token in path.split("/")[1:]]


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescape(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~") if "~" in token else token


def _conflict(index: int, member: str, message: str) -> PatchConflict:
    path = f"/checkpoint/patch/{index}/{member}"
    return PatchConflict(message, fields=(FieldError(path=path, code="patch_conflict", message=message),))
