"""How a name of the vocabulary stands in an address, of the API and of the pages alike."""

from typing import Any

from django.urls import register_converter


class IdentifierConverter:
    """A name of the vocabulary (`runs.wire.Identifier`). It may have slashes; `/versions/` ends it."""

    regex = "[A-Za-z0-9](?:(?!/versions/)[A-Za-z0-9_.:@/+-]){0,63}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: Any) -> str:
        return str(value)


register_converter(IdentifierConverter, "identifier")
