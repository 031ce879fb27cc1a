"""Policies and who may decide, requests and what was said and decided about them."""

from approvals.models.policy import Delegation, Policy, PolicyPermission, PolicyVersion
from approvals.models.request import Activity, Alarm, Comment, Evidence, Request, RequestGroup, Vote

__all__ = [
    "Activity",
    "Alarm",
    "Comment",
    "Delegation",
    "Evidence",
    "Policy",
    "PolicyPermission",
    "PolicyVersion",
    "Request",
    "RequestGroup",
    "Vote",
]
