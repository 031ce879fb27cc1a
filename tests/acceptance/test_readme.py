"""The agent of the README, as it stands there, killed between the payment and its outcome."""

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

import httpx
import pytest

from tests.acceptance.live import HERE, ROOT, Live

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.timeout(120)]


def test_the_agent_of_the_readme_pays_once(live: Live, tmp_path: Path) -> None:
    bank, agent = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in agent.splitlines() if line.strip()]) <= 40
    (tmp_path / "bank.py").write_text(bank)
    (tmp_path / "pay.py").write_text(agent)
    (tmp_path / ".smriti").mkdir()
    scopes = ("effects:write", "tools:read", "tools:write")
    key = live.python(str(HERE / "make_tenant.py"), f"readme-{uuid.uuid4().hex[:8]}", *scopes).strip()
    (tmp_path / ".smriti" / "demo.json").write_text(
        json.dumps({"base_url": live.base_url, "tenants": {"acme": {"keys": {"agent": key, "admin": key}}}})
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "pay.py", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    tool = {
        "side_effect": "irreversible", "business_key": "{invoice}", "scope": "tenant", "execute_seconds": 3,
        "reconcile": {"hint": "look the key up at the bank", "settle_seconds": 1},
    }  # fmt: skip
    url = f"{live.base_url}/api/v1/tools/pay_invoice/versions/1"
    assert httpx.put(url, json=tool, headers={"Authorization": f"Bearer {key}"}).is_success
    killed = run("--crash")
    assert (killed.returncode, killed.stdout.split()) == (-9, ["execute"])
    second = run()
    assert second.returncode == 0, second.stderr
    assert [line.strip() for line in second.stdout.splitlines()] == ["reconcile outcome_unknown", "verified: True"]
    assert list(json.loads((tmp_path / "bank.json").read_text()).values()) == [["4125.00"]]
