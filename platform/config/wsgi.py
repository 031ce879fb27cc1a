"""The web process. The API has no sessions, cookies or forms, so it runs without the pages' middleware: a stolen cookie can
call nothing, and a commit pays for nothing it does not use."""

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django
from django.core.handlers.exception import convert_exception_to_response
from django.core.handlers.wsgi import WSGIHandler

django.setup(set_prefix=False)


class ApiHandler(WSGIHandler):
    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware, self._template_response_middleware, self._exception_middleware = [], [], []
        self._middleware_chain = convert_exception_to_response(self._get_response)


api, pages = ApiHandler(), WSGIHandler()


def application(environ: dict[str, Any], start_response: Any) -> Any:
    handler = api if environ["PATH_INFO"].startswith("/api/") else pages
    return handler(environ, start_response)
