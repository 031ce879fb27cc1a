"""Log lines are JSON with ids; payloads and the messages of exceptions stay out."""

import logging
from collections.abc import Iterator

import orjson
import pytest
import structlog

from kernel import logging as kernel_logging

SECRET = "s3cr3t"


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.usefixtures("restored")
def test_lines_carry_ids_and_no_payloads(capsys: pytest.CaptureFixture[str]) -> None:
    kernel_logging.configure("INFO")
    with kernel_logging.bound(request_id="r-1", tenant="t-1"):
        structlog.get_logger("one").info("run_created", payload={"x": SECRET}, body=SECRET.encode(), note="n" * 1000)
        logging.getLogger("two").warning("enqueue_failed", extra={"task": "runs.sweep", "rows": [SECRET]})
        logging.getLogger("two").debug("quiet")
    first, second = lines(capsys)
    assert (first["event"], first["request_id"], first["tenant"], first["payload"]) == (
        "run_created",
        "r-1",
        "t-1",
        "<dict>",
    )
    assert (first["level"], first["logger"]) == ("info", "one")
    assert len(str(first["note"])) < 400
    assert (second["event"], second["request_id"], second["task"], second["rows"]) == (
        "enqueue_failed", "r-1", "runs.sweep", "<list>",
    )  # fmt: skip


@pytest.mark.usefixtures("restored")
def test_exceptions_are_logged_without_their_messages(capsys: pytest.CaptureFixture[str]) -> None:
    kernel_logging.configure("INFO")
    try:
        try:
            int(SECRET)
        except ValueError as error:
            raise KeyError(SECRET) from error
    except KeyError:
        logging.getLogger("x").exception("failed")
        logging.getLogger("library").error("failed: %s", SECRET, exc_info=True)
        structlog.get_logger("x").exception("failed")
    output = capsys.readouterr().err
    assert SECRET not in output
    for line in output.splitlines():
        outer, inner = orjson.loads(line)["exception"]
        assert (outer["type"], inner["type"]) == ("builtins.KeyError", "builtins.ValueError")
        assert "test_logging.py" in outer["at"][0]
