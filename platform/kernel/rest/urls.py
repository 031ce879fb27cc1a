from django.urls import path

from kernel.rest.docs import DocsView, SchemaView

urlpatterns = [
    path("openapi.json", SchemaView.as_view(), name="openapi"),
    path("docs", DocsView.as_view(), name="api-docs"),
]
