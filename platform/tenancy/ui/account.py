"""How people sign in: with an account that an administrator made. Nobody signs up."""

from typing import TYPE_CHECKING, Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import ChangePasswordForm, LoginForm
from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise


class ClosedDoor(DefaultAccountAdapter):  # type: ignore[misc]  # allauth carries no types
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False


def _plain(form: forms.Form, labels: "dict[str, _StrPromise]") -> None:
    """Our words over the fields, and nothing inside them: a placeholder is gone when it is needed."""
    for name, label in labels.items():
        form.fields[name].label = label
        form.fields[name].widget.attrs.pop("placeholder", None)


class SignIn(LoginForm):  # type: ignore[misc]  # as above
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _plain(self, {"login": _("E-mail"), "password": _("Password")})


class ChangePassword(ChangePasswordForm):  # type: ignore[misc]  # as above
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _plain(
            self,
            {"oldpassword": _("Password now"), "password1": _("New password"), "password2": _("New password again")},
        )
