"""Where people and credentials are looked after, and the ways in and out."""

from allauth.account import views as account
from django.urls import path

from tenancy.ui import keys, members, people

app_name = "tenancy"
urlpatterns = [
    path("", people.home, name="home"),
    path("t/", people.places, name="places"),
    path("t/<slug:slug>/", people.enter, name="enter"),
    path("profile/", people.profile, name="profile"),
    path("t/<slug:slug>/members/", members.Members.as_view(), name="members"),
    path("t/<slug:slug>/members/add/", members.Add.as_view(), name="member_add"),
    path("t/<slug:slug>/members/<uuid:member_id>/roles/", members.ChangeRoles.as_view(), name="member_roles"),
    path("t/<slug:slug>/members/<uuid:member_id>/remove/", members.Remove.as_view(), name="member_remove"),
    path("t/<slug:slug>/keys/", keys.Keys.as_view(), name="keys"),
    path("t/<slug:slug>/keys/new/", keys.Issue.as_view(), name="key_new"),
    path("t/<slug:slug>/keys/<uuid:key_id>/rotate/", keys.Rotate.as_view(), name="key_rotate"),
    path("t/<slug:slug>/keys/<uuid:key_id>/revoke/", keys.Revoke.as_view(), name="key_revoke"),
]

# Of allauth only what this release has pages for; the names are the library's own, without a namespace.
account_urlpatterns = [
    path("sign-in/", account.login, name="account_login"),
    path("sign-out/", account.logout, name="account_logout"),
    path("password/", account.password_change, name="account_change_password"),
]
