from django.urls import path

from tenancy.api import views

urlpatterns = [
    path("projects", views.Projects.as_view()),
    path("agents", views.Agents.as_view()),
    path("members", views.Members.as_view()),
    path("members/<uuid:member_id>", views.Member.as_view()),
    path("members/<uuid:member_id>/roles", views.MemberRoles.as_view()),
    path("keys", views.Keys.as_view()),
    path("keys/<uuid:key_id>", views.Key.as_view()),
    path("keys/<uuid:key_id>/rotate", views.KeyRotation.as_view()),
    path("keys/<uuid:key_id>/revoke", views.KeyRevocation.as_view()),
]
