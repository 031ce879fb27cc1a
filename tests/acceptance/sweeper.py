"""Takes expired leases from their workers, as the scheduler's task does, in a process that a test can kill."""

import time

import django


def main() -> None:
    django.setup()
    from runs import operations

    while True:
        try:
            operations.sweep()
        except Exception as error:
            print(f"sweep: {error!r}", flush=True)  # a killed PostgreSQL is back soon
        time.sleep(0.3)


if __name__ == "__main__":
    main()
