"""What is computed from a tool's definition and a call's input: schemas, business objects, amounts, compensations."""

import json
import time
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs import registry, schemas
from runs.queries.registry import amount_of, business_object, validate_input, validate_output
from runs.registry import InvalidToolInput, ToolDefinition, ToolVersion, check_tool, compensation_input


def tool(**definition: Any) -> ToolVersion:
    form = registry.load(json.dumps({"side_effect": "irreversible"} | definition), ToolDefinition)
    assert check_tool(form) == []
    return ToolVersion.of(id=uuid4(), name="pay", version="1", enabled=True, definition=form)


class TestSchemas:
    def test_an_error_names_place_and_limit_and_no_value(self) -> None:
        schema = {
            "type": "object", "required": ["a", "z"], "additionalProperties": False,
            "properties": {
                "a": {"type": "number", "maximum": 10}, "b": {"type": ["string", "null"], "maxLength": 2, "pattern": "^x"},
                "c": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
            },
        }  # fmt: skip
        raw = b'{"a": 11, "b": "secret", "c": [1, 1, 3], "d~/": 1}'
        found = {(e.path, e.code, e.limit) for e in validate_input(tool(input_schema=schema), raw)}
        assert found == {
            ("/input/z", "missing_field", None), ("/input/a", "maximum", 10), ("/input/b", "max_length", 2),
            ("/input/b", "pattern", "^x"), ("/input/c/2", "enum", None), ("/input/c", "unique_items", None),
            ("/input/d~0~1", "unknown_field", None),
        }  # fmt: skip
        assert not any("secret" in error.message for error in validate_input(tool(input_schema=schema), raw))
        assert validate_output(tool(input_schema=schema), raw) == []

    @pytest.mark.parametrize(
        ("schema", "good", "bad"),
        [
            ('{"maximum": 0.1}', "0.1", "0.1000000000000000000000001"),
            ('{"const": 0.1}', "0.10", "0.1000000000000000000000001"),
            ('{"multipleOf": 0.01}', "1234567890123456.07", "1234567890123456.071"),
            ('{"enum": [9007199254740991]}', "9007199254740991", "9007199254740990"),
            ('{"type": "integer"}', "1.0", "1.0000000000000000000001"),
            ('{"exclusiveMinimum": 0}', "1e-300", "0.0"),
            ('{"maxLength": 1}', '"😀"', '"ab"'),
            ('{"format": "date"}', '"2026-11-29"', '"2026-11-31"'),
        ],
    )
    def test_values_are_judged_exactly(self, schema: str, good: str, bad: str) -> None:
        assert schemas.check(schema.encode(), at="") == []
        assert schemas.errors(schema.encode(), good.encode()) == []
        assert len(schemas.errors(schema.encode(), bad.encode())) == 1

    def test_a_pattern_is_linear_in_the_text(self) -> None:
        schema = b'{"pattern": "^(a+)+$"}'
        assert schemas.errors(schema, b'"' + b"a" * 100_000 + b'!"')[0].code == "pattern"

    @pytest.mark.parametrize("recursive", [False, True])
    def test_a_schema_that_multiplies_is_refused(self, recursive: bool) -> None:
        if recursive:
            again = {"properties": {"a": {"$ref": "#"}}}
            schema: Any = {"allOf": [again] * 5}
        else:
            links = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
            schema = {"$defs": links | {"d40": {"type": "string"}}, "$ref": "#/$defs/d0"}
        [error] = schemas.check(json.dumps(schema).encode(), at="/input_schema")
        assert (error.path, error.code) == ("/input_schema", "too_complex")

    def test_long_lists_of_allowed_values_count(self) -> None:
        schema = json.dumps({"items": {"enum": list(range(20_000))}}).encode()
        assert schemas.check(schema, at="") == []
        assert schemas.errors(schema, b"[19999]") == []
        assert schemas.errors(schema, json.dumps([19_999] * 20_000).encode())[0].code == "too_complex"

    @pytest.mark.parametrize("schema", ['{"$ref": "#"}', '{"allOf": [{"not": {"$ref": "#"}}]}'])
    def test_a_schema_that_goes_in_circles_is_refused(self, schema: str) -> None:
        assert schemas.check(schema.encode(), at="")[0].code == "invalid_schema"

    def test_what_a_recursive_schema_may_cost_depends_on_the_value(self) -> None:
        node: Any = {"properties": {"next": {"$ref": "#"}}}
        schema = json.dumps({"anyOf": [node, node | {"required": ["x"]}]}).encode()
        assert schemas.check(schema, at="") == []
        value: Any = {}
        for _ in range(40):
            value = {"next": value}
        began = time.monotonic()
        assert [error.code for error in schemas.errors(schema, json.dumps(value).encode())] == ["too_complex"]
        assert schemas.errors(schema, b'{"next": {"next": {}}}') == []
        assert time.monotonic() - began < 60  # and not the age of the universe

    def test_a_tree_of_expressions_is_an_honest_schema(self) -> None:
        def operation(name: str) -> Any:
            sides = {"l": {"$ref": "#/$defs/e"}, "r": {"$ref": "#/$defs/e"}, "op": {"const": name}}
            return {"type": "object", "properties": sides, "required": ["op", "l", "r"]}

        schema = json.dumps(
            {"$defs": {"e": {"oneOf": [{"type": "number"}, operation("add"), operation("mul")]}}, "$ref": "#/$defs/e"}
        ).encode()
        assert schemas.check(schema, at="") == []
        assert schemas.errors(schema, b'{"op": "add", "l": 1, "r": {"op": "mul", "l": 2, "r": 3}}') == []
        assert len(schemas.errors(schema, b'{"op": "add", "l": 1, "r": {"op": "mul", "l": 2}}')) == 1

    def test_anchors_and_local_references(self) -> None:
        schema = json.dumps(
            {
                "$defs": {"a b/c": {"$anchor": "name", "type": "string"}},
                "items": {"$ref": "#name"},
                "contains": {"$ref": "#/$defs/a%20b~1c"},
            }
        ).encode()
        assert schemas.check(schema, at="") == []
        assert schemas.errors(schema, b'["x"]') == []
        assert [error.path for error in schemas.errors(schema, b'["x", 1]')] == ["/1"]

    @settings(deadline=None, max_examples=300)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "properties", "$ref", "allOf", "items", "not", "enum", "pattern", "$defs", "$anchor", "minimum",
                     "required", "prefixItems", "dependentSchemas", "unevaluatedProperties", "$dynamicRef", "$id", "x"]
                ),
                inner, max_size=4,
            ),
            max_leaves=12,
        )
    )  # fmt: skip
    def test_any_json_is_a_schema_or_refused_at_a_place(self, value: Any) -> None:
        raw = json.dumps(value).encode()
        found = schemas.check(raw, at="/input_schema")
        assert all(error.path.startswith("/input_schema") and error.message for error in found)
        if not found:
            assert isinstance(schemas.errors(raw, raw), list)


class TestBusinessObjects:
    def test_templates(self) -> None:
        raw = b'{"payment": {"invoice_id": "INV-7", "n": 7, "final": true}, "a/b": ["x", {"~": 1}]}'
        for template, found in {
            "{payment/invoice_id}": "INV-7",
            "pay:{payment/n}": "pay:7",
            "{payment/final}": "true",
            "{a~1b/0}": "x",
            "{a~1b/1/~0}": "1",
            "{payment/invoice_id}:{payment/n}!": "INV-7:7!",
        }.items():
            assert business_object(tool(business_key=template), raw, None) == found

    @pytest.mark.parametrize("value", ['""', "null", "1.5", "1.0", "{}", "[]", None])
    def test_what_is_no_scalar_is_refused_at_its_place(self, value: str | None) -> None:
        raw = b'{"p": {}}' if value is None else f'{{"p": {{"id": {value}}}}}'.encode()
        with pytest.raises(InvalidToolInput) as caught:
            business_object(tool(business_key="{p/id}"), raw, None)
        assert [field.path for field in caught.value.fields] == ["/input/p/id"]

    def test_without_a_template_the_caller_names_it(self) -> None:
        assert business_object(tool(), b"{}", "INV-7") == "INV-7"
        with pytest.raises(InvalidToolInput):
            business_object(tool(), b"{}", None)
        with pytest.raises(InvalidToolInput):
            business_object(tool(business_key="{id}"), b'{"id": 7}', "8")
        assert business_object(tool(business_key="{id}"), b'{"id": 7}', "7") == "7"

    def test_a_long_one_is_refused(self) -> None:
        assert business_object(tool(), b"{}", "x" * 256)
        with pytest.raises(InvalidToolInput) as caught:
            business_object(tool(business_key="{id}"), json.dumps({"id": "x" * 257}).encode(), None)
        assert caught.value.fields[0].limit == 256

    @settings(deadline=None)
    @given(*[st.tuples(st.text(":%/3A25", min_size=1, max_size=6), st.text(":%/3A25", min_size=1, max_size=6))] * 2)
    def test_different_values_never_make_one_object(self, one: tuple[str, str], other: tuple[str, str]) -> None:
        rule = tool(business_key="{a}:{b}")
        objects = [business_object(rule, json.dumps({"a": a, "b": b}).encode(), None) for a, b in (one, other)]
        assert (objects[0] == objects[1]) == (one == other)

    @settings(deadline=None)
    @given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4), st.text(min_size=1, max_size=20))
    def test_any_name_can_be_pointed_to(self, names: list[str], value: str) -> None:
        value = value.encode("utf-8", "ignore").decode() or "x"
        names = [name.encode("utf-8", "ignore").decode().replace("{", "").replace("}", "") or "x" for name in names]
        document: Any = value
        for name in reversed(names):
            document = {name: document}
        way = "/".join(name.replace("~", "~0").replace("/", "~1") for name in names)
        assert business_object(tool(business_key="{" + way + "}"), json.dumps(document).encode(), None) == value


class TestAmounts:
    RULE = {"path": "a", "currency": "INR"}

    @pytest.mark.parametrize(
        ("text", "amount"),
        [
            ('"4125000.00"', "4125000.00"), ("0.1000", "0.1"), ("12", "12"), ("1e2", "100"), ("0", "0"), ("-0.0", "0"),
            ("123456789012.345678", "123456789012.345678"), ('"123456789012345678"', "123456789012345678"), ("0e999", "0"),
            ("0.0000010000", "0.000001"), ("1.5e1", "15"),
        ],
    )  # fmt: skip
    def test_amounts_are_exact(self, text: str, amount: str) -> None:
        found = amount_of(tool(amount=self.RULE), b'{"a": ' + text.encode() + b"}")
        assert found == (Decimal(amount), "INR")

    @pytest.mark.parametrize(
        "text",
        [
            "-1", '"-1"', '"1e5"', '"1,000"', '" 1"', '"1 "', '"１"', "null", "true", "[]", "{}", '""', "0.0000001",
            "1234567890123456789", "1e18", "1e300", "1e-400000000000000000000000000", '"NaN"', '"Infinity"', "1234567890123.123456",
        ],
    )  # fmt: skip
    def test_what_is_no_amount_is_refused(self, text: str) -> None:
        if text.startswith("1e-4"):
            assert amount_of(tool(amount=self.RULE), b'{"a": ' + text.encode() + b"}") == (Decimal(0), "INR")
            return
        with pytest.raises(InvalidToolInput) as caught:
            amount_of(tool(amount=self.RULE), b'{"a": ' + text.encode() + b"}")
        assert caught.value.fields[0].path == "/input/a"

    def test_the_currency_may_stand_in_the_input(self) -> None:
        rule = tool(amount={"path": "m/a", "currency_path": "m/c"})
        assert amount_of(rule, b'{"m": {"a": "1.50", "c": "USD"}}') == (Decimal("1.50"), "USD")
        for currency in ('"usd"', "1", "null", '"USDX"'):
            with pytest.raises(InvalidToolInput):
                amount_of(rule, b'{"m": {"a": "1.50", "c": ' + currency.encode() + b"}}")
        with pytest.raises(InvalidToolInput):
            amount_of(rule, b'{"m": {"a": "1.50"}}')
        assert amount_of(tool(), b"{}") is None

    @settings(deadline=None)
    @given(st.decimals(min_value=0, max_value=Decimal("999999999999.999999"), places=6))
    def test_any_amount_comes_through(self, amount: Decimal) -> None:
        for text in (f"{amount:f}", f'"{amount:f}"'):
            assert amount_of(tool(amount=self.RULE), b'{"a": ' + text.encode() + b"}") == (amount, "INR")


class TestCompensations:
    def test_values_are_taken_to_the_letter(self) -> None:
        template = {"refund": "{output/id}", "all": "{input}", "list": ["{input/a/0}", "text {input/a}"], "rate": 1.10}
        rule = tool(compensation={"tool": "refund", "input": template})
        made = compensation_input(rule, b'{"a": [0.1000000000000000000001, 2]}', b'{"id": {"z": 1.10}}')
        assert made == (
            b'{"refund":{"z": 1.10},"all":{"a": [0.1000000000000000000001, 2]},'
            b'"list":[0.1000000000000000000001,"text {input/a}"],"rate":1.1}'
        )

    def test_a_missing_value_is_named(self) -> None:
        rule = tool(compensation={"tool": "refund", "input": {"id": "{output/id}"}})
        with pytest.raises(InvalidToolInput) as caught:
            compensation_input(rule, b"{}", b"{}")
        assert caught.value.fields[0].path == "/output/id"
