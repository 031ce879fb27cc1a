"""The shared state as raw JSON, changed by JSON Patch (RFC 6902).

Values stay the bytes that the client sent, at every depth: a number keeps its digits, a key its place. Only the levels on the
way to a changed value are taken apart. A *channel* is a top-level name of the state.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
import orjson
from msgspec import Raw

from kernel import codec
from kernel.errors import DomainError, FieldError

MAX_DIFF_DEPTH: Final = 8


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
_encode: Final = msgspec.json.encode


def parse(patch: bytes) -> list[Operation]:
    """The operations of a patch; each has the members RFC 6902 asks of it. Raises msgspec.ValidationError, PatchConflict."""
    operations = _operations.decode(patch)
    for index, operation in enumerate(operations):
        if operation.op in ("add", "replace", "test") and not operation.value:
            raise _conflict(index, "value", "This operation needs a value.")
        if operation.op in ("move", "copy") and operation.from_ is None:
            raise _conflict(index, "from", "This operation needs a source.")
        if operation.path and not operation.path.startswith("/"):
            raise _conflict(index, "path", "A path begins with a slash (RFC 6901).")
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


def apply(state: State, operations: Iterable[Operation]) -> State:
    """The state after a patch, all or nothing: `state` itself is not changed. Raises PatchConflict naming the operation.

    Whole channels and elements appended to one, the usual operations of a long run, take nothing apart: appended elements are
    collected, so that n of them cost one copy of the list and not n.
    """
    state = dict(state)
    appended: dict[str, list[Raw]] = {}
    for index, operation in enumerate(operations):
        name, slash, rest = operation.path[1:].partition("/")
        name = _unescape(name)
        if operation.path and operation.op in ("add", "replace", "remove"):
            if not slash:
                if operation.op != "add" and name not in state:
                    raise _conflict(index, "path", f"{operation.path!r} does not exist.")
                appended.pop(name, None)
                if operation.op == "remove":
                    del state[name]
                else:
                    state[name] = operation.value
                continue
            if rest == "-" and operation.op == "add":
                if name not in state or not is_list(state[name]):
                    raise _conflict(index, "path", f"{operation.path!r} is not in a list.")
                appended.setdefault(name, []).append(operation.value)
                continue
        _flush(state, appended)
        state = _apply_one(state, operation, index)
    _flush(state, appended)
    return state


def _flush(state: State, appended: dict[str, list[Raw]]) -> None:
    for channel, values in appended.items():
        text = bytes(state[channel]).strip()
        body = text[1:-1].strip()
        parts = [body] if body else []
        state[channel] = Raw(b"[" + b",".join([*parts, *map(bytes, values)]) + b"]")
    appended.clear()


def diff(old: State, new: State) -> bytes:
    """A patch from one state to another: what was appended to a list is sent as that."""
    operations: list[dict[str, object]] = []
    _diff_objects("", old, new, operations, MAX_DIFF_DEPTH)
    return _encode(operations)


def is_list(value: Raw | bytes) -> bool:
    return bytes(memoryview(value)[:64]).lstrip()[:1] == b"["


def _is_object(value: Raw) -> bool:
    return bytes(memoryview(value)[:64]).lstrip()[:1] == b"{"


def _apply_one(state: State, operation: Operation, index: int) -> State:
    root = Raw(dump(state))
    tokens = _tokens(operation.path)
    try:
        match operation.op:
            case "add" | "replace":
                root = _set(root, tokens, operation.value, insert=operation.op == "add")
            case "remove":
                root = _remove(root, tokens)
            case "test":
                if codec.canonical(orjson.loads(bytes(_get(root, tokens)))) != codec.canonical(
                    orjson.loads(bytes(operation.value))
                ):
                    raise LookupError("does not have the tested value")
            case "copy" | "move":
                source = _tokens(operation.from_ or "")
                if operation.op == "move" and tokens[: len(source)] == source and tokens != source:
                    raise LookupError("lies within its own source")
                value = _get(root, source)
                if operation.op == "move":
                    root = _remove(root, source)
                root = _set(root, tokens, value, insert=True)
        return _object.decode(root)
    except LookupError as error:
        raise _conflict(index, "path", f"{operation.path!r} {error.args[0]}.") from error
    except msgspec.ValidationError as error:
        raise _conflict(index, "path", "The state must stay an object.") from error


def _get(value: Raw, tokens: list[str]) -> Raw:
    for token in tokens:
        if _is_object(value):
            members = _object.decode(value)
            if token not in members:
                raise LookupError("does not exist")
            value = members[token]
        elif is_list(value):
            items = _array.decode(value)
            value = items[_index(token, len(items) - 1)]
        else:
            raise LookupError("does not exist")
    return value


def _set(target: Raw, tokens: list[str], value: Raw, *, insert: bool) -> Raw:
    if not tokens:
        return value
    token, rest = tokens[0], tokens[1:]
    if _is_object(target):
        members = _object.decode(target)
        if token not in members and (rest or not insert):
            raise LookupError("does not exist")
        members[token] = _set(members[token], rest, value, insert=insert) if rest else value
        return Raw(_encode(members))
    if is_list(target):
        items = _array.decode(target)
        if not rest and insert:
            items.insert(len(items) if token == "-" else _index(token, len(items)), value)
        else:
            position = _index(token, len(items) - 1)
            items[position] = _set(items[position], rest, value, insert=insert) if rest else value
        return Raw(_encode(items))
    raise LookupError("does not exist")


def _remove(target: Raw, tokens: list[str]) -> Raw:
    if not tokens:
        raise LookupError("is the whole state")
    token, rest = tokens[0], tokens[1:]
    if _is_object(target):
        members = _object.decode(target)
        if token not in members:
            raise LookupError("does not exist")
        if rest:
            members[token] = _remove(members[token], rest)
        else:
            del members[token]
        return Raw(_encode(members))
    if is_list(target):
        items = _array.decode(target)
        position = _index(token, len(items) - 1)
        if rest:
            items[position] = _remove(items[position], rest)
        else:
            del items[position]
        return Raw(_encode(items))
    raise LookupError("does not exist")


def _index(token: str, last: int) -> int:
    if not (token.isascii() and token.isdigit()) or (token != "0" and token.startswith("0")) or int(token) > last:
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
