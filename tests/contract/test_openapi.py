"""The OpenAPI document: committed, complete, and true of every answer that seeded random calls get."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.parameters import ParameterLocation
from schemathesis.openapi import from_dict
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from kernel.rest.docs import document

if TYPE_CHECKING:
    from tests.contract.calls import Desk

FILE = Path(__file__).with_name("openapi.json")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PARTS = (ParameterLocation.QUERY, ParameterLocation.BODY)


@pytest.fixture(scope="module")
def desk(_database: None) -> "Iterator[Desk]":
    from tests.contract.calls import Desk

    found = Desk()
    yield found
    found.close()


def operations() -> list[tuple[str, str]]:
    paths = json.loads(document())["paths"]
    return [(method.upper(), path) for path, found in paths.items() for method in found]


def test_the_committed_document_is_the_served_one() -> None:
    """SMRITI_WRITE_OPENAPI=1 writes it anew; the diff is what a change means to clients."""
    served = json.dumps(json.loads(document()), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("SMRITI_WRITE_OPENAPI"):
        FILE.write_text(served)
    assert FILE.read_text() == served


def test_every_operation_is_whole() -> None:
    for path, found in json.loads(document())["paths"].items():
        for method, operation in found.items():
            name = f"{method} {path}"
            assert operation["summary"], name
            assert "scope `" in operation["description"], name
            assert operation["security"] == [{"apiKey": []}], name
            codes = set(operation["responses"])
            assert {"401", "403", "429", "500", "503"} < codes, name
            assert any(code.startswith("2") for code in codes), name
            assert ("404" in codes) or "{" not in path, name
            for code, answer in operation["responses"].items():
                if code >= "400":
                    assert list(answer["content"]) == ["application/problem+json"], name


@pytest.mark.parametrize(("method", "path"), operations())
def test_answers_are_as_documented(method: str, path: str, desk: "Desk", proof: bool) -> None:
    """Random calls, valid ones and broken ones, seeded, on ids that exist."""
    from config.wsgi import application

    schema = from_dict(json.loads(document()))
    schema.app = application
    operation = schema[path][method]
    headers = {"Authorization": f"Bearer {desk.house.keys['admin']}"}

    @seed(20_261_129)
    @settings(max_examples=300 if proof else 15, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def run(data: Any) -> None:
        mode = data.draw(st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        # What is broken in the path or in headers is put right here, so only these parts can be broken.
        broken = {case.meta.components[part].mode for part in PARTS if part in case.meta.components}
        case.path_parameters = {name: str(desk.ids[name]) for name in case.path_parameters or {}}
        response = case.call(headers=headers)
        checks = [*CHECKS, negative_data_rejection] if GenerationMode.NEGATIVE in broken else CHECKS
        case.validate_response(response, checks=checks)

    run()
