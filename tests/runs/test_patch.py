"""JSON Patch on raw bytes: what RFC 6902 says, and every value as it was written."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from runs import patch
from runs.patch import PatchConflict

names = st.sampled_from(["a", "b", "c", "m~n", "x/y", "", "-", "0"])
scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
states = st.dictionaries(names, values, max_size=4)


def load(value: dict[str, Any]) -> patch.State:
    return patch.load(json.dumps(value).encode())


def pointers(value: Any, at: str = "") -> list[str]:
    found = [at]
    if isinstance(value, dict):
        for name, child in value.items():
            found += pointers(child, f"{at}/{name.replace('~', '~0').replace('/', '~1')}")
        found += [f"{at}/new", f"{at}/-"]
    elif isinstance(value, list):
        for index, child in enumerate(value):
            found += pointers(child, f"{at}/{index}")
        found += [f"{at}/-", f"{at}/{len(value)}", f"{at}/99"]
    return found


@st.composite
def patched(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    state = draw(states)
    places = st.sampled_from(pointers(state))
    operations = []
    for _ in range(draw(st.integers(0, 4))):
        op = draw(st.sampled_from(["add", "add", "replace", "remove", "test", "move", "copy"]))
        operation: dict[str, Any] = {"op": op, "path": draw(places)}
        if op in ("add", "replace", "test"):
            operation["value"] = draw(values)
        if op in ("move", "copy"):
            operation["from"] = draw(places)
        operations.append(operation)
    return state, operations


def reference(document: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902 on parsed values, written down as plainly as it goes. Raises LookupError or ValueError."""

    def tokens(pointer: str) -> list[str]:
        return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]

    def index(token: str, limit: int) -> int:
        if not token.isdigit() or (token != "0" and token[0] == "0") or int(token) > limit:
            raise LookupError(token)
        return int(token)

    def get(root: Any, path: list[str]) -> Any:
        for token in path:
            if isinstance(root, dict):
                root = root[token]
            elif isinstance(root, list):
                root = root[index(token, len(root) - 1)]
            else:
                raise LookupError(token)
        return root

    def add(root: Any, path: list[str], value: Any) -> Any:
        if not path:
            return value
        parent, last = get(root, path[:-1]), path[-1]
        if isinstance(parent, dict):
            parent[last] = value
        elif isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else index(last, len(parent)), value)
        else:
            raise LookupError(last)
        return root

    def remove(root: Any, path: list[str]) -> None:
        if not path:
            raise LookupError("root")
        parent, last = get(root, path[:-1]), path[-1]
        if isinstance(parent, dict):
            del parent[last]
        elif isinstance(parent, list):
            del parent[index(last, len(parent) - 1)]
        else:
            raise LookupError(last)

    root = copy.deepcopy(document)
    for operation in operations:
        path = tokens(operation["path"])
        match operation["op"]:
            case "add":
                root = add(root, path, copy.deepcopy(operation["value"]))
            case "replace":
                get(root, path)
                if path:
                    parent, last = get(root, path[:-1]), path[-1]
                    parent[last if isinstance(parent, dict) else int(last)] = copy.deepcopy(operation["value"])
                else:
                    root = copy.deepcopy(operation["value"])
            case "remove":
                remove(root, path)
            case "test":
                if json.dumps(get(root, path), sort_keys=True) != json.dumps(operation["value"], sort_keys=True):
                    raise LookupError("test")
            case kind:
                source = tokens(operation["from"])
                if kind == "move" and path[: len(source)] == source and path != source:
                    raise LookupError("into itself")
                value = copy.deepcopy(get(root, source))
                if kind == "move":
                    remove(root, source)
                root = add(root, path, value)
        if not isinstance(root, dict):
            raise LookupError("no object")
    return root


@given(patched())
def test_agrees_with_a_plain_reading_of_the_rfc(case: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    state, operations = case
    try:
        expected = reference(state, operations)
    except LookupError:
        expected = None
    try:
        found = json.loads(patch.dump(patch.apply(load(state), patch.parse(json.dumps(operations).encode()))))
    except PatchConflict:
        found = None
    assert found == expected


@given(states, states)
def test_a_difference_leads_from_one_state_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    change = patch.diff(load(old), load(new))
    assert json.loads(patch.dump(patch.apply(load(old), patch.parse(change)))) == new


@given(states, st.lists(st.tuples(st.sampled_from(["add", "replace", "remove", "append"]), names, values), max_size=5))
def test_what_is_told_without_the_state_is_what_happens(
    state: dict[str, Any], steps: list[tuple[str, str, Any]]
) -> None:
    """The database checks a patch of top-level operations by channel names alone. What it accepts must apply, with that effect;
    what it does not is applied to the state itself before it is refused: there `/a/-` may be a member of an object.
    """
    operations: list[dict[str, Any]] = []
    for op, name, value in steps:
        path = "/" + name.replace("~", "~0").replace("/", "~1")
        if op == "append":
            operations.append({"op": "add", "path": path + "/-", "value": value})
        else:
            operations.append({"op": op, "path": path} | ({} if op == "remove" else {"value": value}))
    parsed = patch.parse(json.dumps(operations).encode())
    told = patch.top_level(parsed)
    if told is None:
        return
    before = load(state)
    lists = {name for name, value in before.items() if patch.is_list(value)}
    accepted = told.appended <= lists and told.required <= set(before)
    if not accepted:
        if all(op != "append" for op, _, _ in steps):
            with pytest.raises(PatchConflict):
                patch.apply(before, parsed)
        return
    after = patch.apply(before, parsed)
    gone = told.values | told.removed | told.lists
    assert {name for name, value in after.items() if patch.is_list(value)} == (lists - gone) | told.lists
    assert {name for name, value in after.items() if not patch.is_list(value)} == (
        set(before) - lists - gone
    ) | told.values


@pytest.mark.parametrize(
    "number", ["1.0", "-0", "-0.0", "1e5", "1E+2", "0.1000", "12345678901234.123456789012345678", "0"]
)
def test_numbers_keep_their_digits_at_every_depth(number: str) -> None:
    state = patch.load(f'{{"a": {{"b": [1, {number}]}}, "c": {number}, "l": []}}'.encode())
    operations = patch.parse(
        f"""[{{"op": "add", "path": "/a/b/0", "value": {number}}}, {{"op": "add", "path": "/l/-", "value": [{number}]}},
             {{"op": "copy", "from": "/c", "path": "/a/d"}}, {{"op": "replace", "path": "/a/b/1", "value": 2}}]""".encode()
    )
    text = patch.dump(patch.apply(state, operations)).decode()
    assert text.replace(" ", "") == f'{{"a":{{"b":[{number},2,{number}],"d":{number}}},"c":{number},"l":[[{number}]]}}'


def test_a_refused_patch_names_the_operation() -> None:
    with pytest.raises(PatchConflict) as refused:
        patch.apply({"a": Raw(b"1")}, patch.parse(b'[{"op":"test","path":"/a","value":1},{"op":"remove","path":"/b"}]'))
    assert refused.value.fields[0].path == "/checkpoint/patch/1/path"


def test_a_thousand_appended_elements_cost_one_copy() -> None:
    operations = [{"op": "add", "path": "/l/-", "value": i} for i in range(20_000)]
    state = patch.apply(patch.load(b'{"l": [ ]}'), patch.parse(json.dumps(operations).encode()))
    assert json.loads(patch.dump(state)) == {"l": list(range(20_000))}
