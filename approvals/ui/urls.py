from django.urls import path

from approvals.ui import edit, mine, requests, rulebook, together

app_name = "approvals"
_ALL = "t/<slug:slug>/approvals"
_REQUEST = f"{_ALL}/<uuid:request_id>"
_POLICY = f"{_ALL}/policies/<uuid:policy_id>"
urlpatterns = [
    path(f"{_ALL}/", requests.Inbox.as_view(), name="inbox"),
    path(f"{_ALL}/together/", together.Together.as_view(), name="together"),
    path(f"{_ALL}/mine/", mine.Mine.as_view(), name="mine"),
    path(f"{_ALL}/mine/<uuid:delegation_id>/end/", mine.EndDelegation.as_view(), name="end_delegation"),
    path(f"{_ALL}/policies/", rulebook.Policies.as_view(), name="policies"),
    path(f"{_ALL}/policies/new/", rulebook.NewPolicy.as_view(), name="policy_new"),
    path(f"{_POLICY}/", rulebook.Policy.as_view(), name="policy"),
    path(f"{_POLICY}/approvers/", rulebook.Approver.as_view(), name="approver"),
    path(f"{_REQUEST}/", requests.Request.as_view(), name="request"),
    path(f"{_REQUEST}/news/", requests.News.as_view(), name="news"),
    path(f"{_REQUEST}/value/", requests.Value.as_view(), name="value"),
    path(f"{_REQUEST}/value.json", requests.Raw.as_view(), name="raw"),
    path(f"{_REQUEST}/decide/", requests.Decide.as_view(), name="decide"),
    path(f"{_REQUEST}/act/", requests.Act.as_view(), name="act"),
    path(f"{_REQUEST}/edit/", edit.Edit.as_view(), name="edit"),
]
