from django.urls import path

from kernel.rest import docs

urlpatterns = [
    path("openapi.json", docs.openapi, name="openapi"),
    path("docs", docs.page, name="api-docs"),
]
