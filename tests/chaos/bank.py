"""A bank that is as bad as a real one: it loses requests and answers, delays, answers twice, fails, and is down at times.

Invariants: it does not recognise a repeated key, so a payment asked for twice is a payment made twice; what it executed
stands in `executed.jsonl`, on disk, before anybody hears of it; a request that it holds back (`pending`) is executed within
`--settle` seconds or never. Standard library only.
"""

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Final

Json = dict[str, Any]
Answer = tuple[int, Json]

# What becomes of a payment, in percent. The first three end as payments, but not all who asked hear of it.
FAULTS: Final = {
    "answer lost": 4,  # executed, then the connection breaks
    "slow": 3,  # executed after a while, then answered
    "slow, answer lost": 2,  # the connection breaks at once, the payment is made later
    "answered late": 2,  # executed at once, answered after a while
    "answered twice": 3,
    "error after": 2,  # executed, and then a 500
    "request lost": 3,  # never executed, the connection breaks
    "error before": 2,  # never executed, a 500
    "unavailable": 3,  # a 503 that says so: not executed
    "rate limited": 2,
    "invalid": 0.6,
    "rejected": 0.3,
}


class Bank:
    def __init__(self, folder: Path, *, seed: str, faults: float, settle: float) -> None:
        self.seed, self.faults, self.settle = seed, faults, settle
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.received_file = (append(folder / f"{name}.jsonl") for name in ("executed", "received"))
        self.executed = {row["key"]: row for row in Tail(folder / "executed.jsonl").rows()}
        self.calls = Counter(row["key"] for row in Tail(folder / "received.jsonl").rows())
        self.pending: Counter[str] = Counter()

    def execute(self, key: str, payment: Json) -> Answer:
        """Make the payment, whether or not it was made before, and know of it before anybody else does."""
        row = {
            **payment,
            "key": key,
            "transaction": f"TX-{len(self.executed)}-{os.urandom(4).hex()}",
            "at": time.time(),
        }
        self.file.write(b"%s\n" % json.dumps(row).encode())
        os.fsync(self.file.fileno())
        self.executed[key] = row
        return 201, {"status": "executed", "transaction": row["transaction"]}

    def found(self, key: str) -> Json:
        if key in self.executed:
            return {"status": "executed", "transaction": self.executed[key]["transaction"]}
        return {"status": "pending" if self.pending[key] else "not_found"}

    async def pay(self, key: str, payment: Json) -> tuple[list[Answer], float]:
        """The answers to give (none: the connection breaks) and the seconds to wait before the first."""
        self.calls[key] += 1
        dice = random.Random(f"{self.seed}/{key}/{self.calls[key]}")
        fault = ""
        if dice.random() < self.faults * sum(FAULTS.values()) / 100:
            (fault,) = dice.choices(list(FAULTS), list(FAULTS.values()))
        self.received_file.write(b"%s\n" % json.dumps({"key": key, "fault": fault, "at": time.time()}).encode())
        later = dice.uniform(0.1, 0.9) * self.settle
        match fault:
            case "request lost":
                return [], 0
            case "answer lost":
                self.execute(key, payment)
                return [], 0
            case "slow":
                return [await self.execute_later(key, payment, later)], 0
            case "slow, answer lost":
                task = asyncio.create_task(self.execute_later(key, payment, later))
                TASKS.add(task)
                task.add_done_callback(TASKS.discard)
                return [], 0
            case "answered late":
                return [self.execute(key, payment)], later
            case "answered twice":
                return [self.execute(key, payment)] * 2, 0
            case "error after":
                self.execute(key, payment)
                return [(500, {"error": "internal"})], 0
            case "error before":
                return [(500, {"error": "internal"})], 0
            case "unavailable":
                return [(503, {"error": "unavailable", "executed": False})], 0
            case "rate limited":
                return [(429, {"error": "rate_limited", "executed": False, "retry_after": 0.5})], 0
            case "invalid":
                return [(400, {"error": "invalid", "executed": False})], 0
            case "rejected":
                return [(422, {"error": "rejected", "executed": False, "reason": "the account is closed"})], 0
        return [self.execute(key, payment)], 0

    async def execute_later(self, key: str, payment: Json, seconds: float) -> Answer:
        received = time.monotonic()
        self.pending[key] += 1
        await asyncio.sleep(seconds)
        self.pending[key] -= 1
        if time.monotonic() - received > self.settle:  # it promised to be done by then, and was busy
            return 503, {"error": "expired", "executed": False}
        return self.execute(key, payment)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """HTTP/1.1 with kept connections, as far as a client of this bank needs it."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request, *lines = head.decode().split("\r\n")
                method, path, _ = request.split(" ")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                key = path.rpartition("/")[2]
                answers, seconds = [(200, self.found(key))], 0.0
                if method == "POST":
                    answers, seconds = await self.pay(key, json.loads(body))
                await asyncio.sleep(seconds)
                writer.write(b"".join(wire(status, {"key": key, **value}) for status, value in answers))
                await writer.drain()
                if not answers:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


TASKS: Final[set[asyncio.Task[Answer]]] = set()


def wire(status: int, value: Json) -> bytes:
    body = json.dumps(value).encode()
    retry = f"Retry-After: {value['retry_after']}\r\n" if "retry_after" in value else ""
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n{retry}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def append(path: Path) -> BinaryIO:
    """A file to write lines to; a line that a kill had cut is ended, and will not be read."""
    file = path.open("ab", buffering=0)
    if file.tell() and path.read_bytes()[-1:] != b"\n":
        file.write(b"\n")
    return file


class Tail:
    """The rows of a file of the bank that grows."""

    def __init__(self, path: Path) -> None:
        self.path, self.position, self.found = path, 0, list[Json]()

    def rows(self) -> list[Json]:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.position)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self.position += len(whole)
            for line in whole.split(b"\n"):
                with suppress(ValueError):  # cut by a kill
                    self.found.append(json.loads(line))
        return self.found


async def main(options: argparse.Namespace) -> None:
    bank = Bank(options.folder, seed=options.seed, faults=options.faults, settle=options.settle)
    server = await asyncio.start_server(bank.serve, "127.0.0.1", options.port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--faults", type=float, default=1, help="how much of the usual trouble there is; 0: none")
    parser.add_argument("--settle", type=float, default=1.5, help="seconds after which nothing is pending")
    asyncio.run(main(parser.parse_args()))
