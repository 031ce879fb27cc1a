"""The tools of the workload, as they are registered with the platform. Times are short, so that a lost answer costs seconds.

`SMRITI_API_KEY=… python -m tests.chaos.tools http://127.0.0.1:8000` registers them with one that `make up` started: bank and agents
(`python -m tests.chaos.bank --help`, `… agent --help`) then work for its runs.
"""

import os
import sys
from typing import Any, Final

import httpx

Json = dict[str, Any]

EXECUTE_SECONDS: Final = 3  # a payment is not begun later than this after its reservation was asked for
BANK_SETTLE_SECONDS: Final = 1.0  # after which the bank executes nothing that it received before
SETTLE_SECONDS: Final = 2  # what the platform is told: the way to the bank counts too
GIVE_UP_SECONDS: Final = 60
CURRENCY: Final = "INR"

_PAYMENT: Final[Json] = {
    "description": "Pays an invoice",
    "input_schema": {
        "type": "object",
        "properties": {"invoice_id": {"type": "string"}, "amount": {"type": "string"}, "currency": {"type": "string"}},
        "required": ["invoice_id", "amount", "currency"],
    },
    "output_schema": {
        "type": "object",
        "properties": {"transaction": {"type": "string"}},
        "required": ["transaction"],
    },
    "side_effect": "irreversible",
    "business_key": "{invoice_id}",
    "scope": "run",
    "amount": {"path": "amount", "currency": CURRENCY},
    "approval": "never",
    "retry": {"max_attempts": 6, "initial_seconds": 0.2, "factor": 1.5, "max_seconds": 1},
    "reconcile": {
        "hint": "Ask the bank: GET /payments/{key}",
        "settle_seconds": SETTLE_SECONDS,
        "give_up_seconds": GIVE_UP_SECONDS,
    },
    "execute_seconds": EXECUTE_SECONDS,
}


def definitions() -> dict[str, Json]:
    """Name: definition. Shared invoices are paid with `pay_invoice` only, whose scope is the tenant."""
    back = {"tool": "refund", "input": {name: f"{{input/{name}}}" for name in ("invoice_id", "amount", "currency")}}
    return {
        "pay_invoice": {**_PAYMENT, "scope": "tenant"},
        "pay_in_run": _PAYMENT,
        "pay_in_step": {**_PAYMENT, "scope": "step", "side_effect": "idempotent"},
        "pay_approved": {**_PAYMENT, "approval": "always"},
        "pay_reversible": {**_PAYMENT, "side_effect": "reversible", "compensation": back},
        "refund": {**_PAYMENT, "description": "Pays an invoice back"},
    }


if __name__ == "__main__":
    key = os.environ["SMRITI_API_KEY"]
    with httpx.Client(base_url=f"{sys.argv[1]}/api/v1", headers={"Authorization": f"Bearer {key}"}) as client:
        for name, definition in definitions().items():
            client.put(f"/tools/{name}/versions/1", json=definition).raise_for_status()
