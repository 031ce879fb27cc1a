from django.urls import path

from audit.api import views

urlpatterns = [
    path("audit", views.Entries.as_view()),
    path("audit/verify", views.Verification.as_view()),
]
