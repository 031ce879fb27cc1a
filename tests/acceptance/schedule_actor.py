"""A process that fires schedules until it is killed, by itself at a named point or from outside."""

import os
import random
import signal
import sys
import time
from typing import Any

import django

django.setup()

from runs.operations import schedules


def main(seed: int, chance: float) -> None:
    dice = random.Random(seed)
    carry_out, fire_schedule = schedules._carry_out, schedules.fire_schedule

    def die() -> None:
        if dice.random() < chance:
            os.kill(os.getpid(), signal.SIGKILL)

    def carrying_out(*arguments: Any) -> None:
        die()  # the schedule is locked, nothing is written
        carry_out(*arguments)
        die()  # everything is written, nothing is committed

    def firing(**arguments: Any) -> bool:
        fired = fire_schedule(**arguments)
        die()  # committed
        return fired

    schedules._carry_out, schedules.fire_schedule = carrying_out, firing  # type: ignore[assignment]
    while True:
        try:
            schedules.fire_schedules()
        except Exception as error:
            print(f"sweep: {error!r}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
