"""The work that every contender does: runs of 20 steps, each a tool call of 2 KB and a state that grows from 4 to 64 KB."""

import random
from dataclasses import dataclass
from typing import Any

STEMS = "agent tool call plan file test build error value token query index user order price vector memory event state patch"
WORDS = [stem + end for stem in STEMS.split() for end in ("", "s", "ed", "ing", "er", "less", "ful", "ly")]


@dataclass(frozen=True)
class Step:
    input: dict[str, Any]
    output: dict[str, Any]
    state: dict[str, Any]


def make_run(seed: int, steps: int = 20) -> list[Step]:
    rnd = random.Random(seed)
    messages: list[dict[str, Any]] = [{"role": "user", "id": f"{seed}-0", "content": _text(rnd, 3700)}]
    run = []
    for i in range(steps):
        tool_in = {
            "tool": rnd.choice(WORDS), "path": "src/" + _text(rnd, 30).replace(" ", "/"), "query": _text(rnd, 150),
            "limit": rnd.randint(1, 99), "flags": [rnd.choice(WORDS) for _ in range(4)],
        }  # fmt: skip
        tool_out = {
            "ok": True, "took_ms": rnd.randint(1, 5000), "rows": [{"id": n, "text": _text(rnd, 180)} for n in range(9)],
        }  # fmt: skip
        if i:
            turn = {"role": "user", "id": f"{seed}-{i}", "in": tool_in, "out": tool_out, "content": _text(rnd, 700)}
            messages = [*messages, turn]
        state = {
            "messages": messages, "step": i, "phase": rnd.choice(WORDS), "budget": {"tokens": 1000 * i, "usd": i / 7},
            "plan": [_text(rnd, 60)], "goal": "constant goal text of this run", "config": {"model": "m", "temperature": 0},
        }  # fmt: skip
        run.append(Step(tool_in, tool_out, state))
    return run


def _text(rnd: random.Random, size: int) -> str:
    out, length = [], 0
    while length < size:
        word = rnd.choice(WORDS) if rnd.random() < 0.8 else f"{rnd.getrandbits(40):x}"
        out.append(word)
        length += len(word) + 1
    return " ".join(out)[:size]
