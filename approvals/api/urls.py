"""The routes of approvals."""

from django.urls import path

from approvals.api import policies, requests

_REQUEST = "approvals/requests/<uuid:request_id>"
_POLICY = "approvals/policies/<uuid:policy_id>"

urlpatterns = [
    path("approvals/requests", requests.RequestsView.as_view()),
    path("approvals/decide", requests.DecideManyView.as_view()),
    path(_REQUEST, requests.RequestView.as_view()),
    path(f"{_REQUEST}/wait", requests.WaitView.as_view()),
    path(f"{_REQUEST}/decide", requests.DecideView.as_view()),
    path(f"{_REQUEST}/withdraw", requests.WithdrawView.as_view()),
    path(f"{_REQUEST}/revalidate", requests.RevalidateView.as_view()),
    path(f"{_REQUEST}/target", requests.TargetView.as_view()),
    path(f"{_REQUEST}/renew", requests.RenewView.as_view()),
    path(f"{_REQUEST}/revoke", requests.RevokeView.as_view()),
    path(f"{_REQUEST}/comments", requests.CommentsView.as_view()),
    path("approvals/policies", policies.PoliciesView.as_view()),
    path("approvals/policies/dry-run", policies.DryRunView.as_view()),
    path(_POLICY, policies.PolicyView.as_view()),
    path(f"{_POLICY}/versions", policies.PolicyVersionsView.as_view()),
    path(f"{_POLICY}/approvers/<uuid:member_id>", policies.ApproverView.as_view()),
    path("approvals/delegations", policies.DelegationsView.as_view()),
    path("approvals/delegations/<uuid:delegation_id>", policies.DelegationView.as_view()),
]
