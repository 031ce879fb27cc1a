"""`python -m tests.chaos [--seed N] [--effects N] [--defect NAME]`: the chaos from the command line, with a report."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.defects import DEFECTS
from tests.chaos.harness import Chaos
from tests.chaos.report import table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--effects", type=int, default=300)
    parser.add_argument("--defect", choices=[*DEFECTS])
    parser.add_argument("--folder", type=Path, help="kept afterwards; without it a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="smriti-chaos-") as made:
        folder = options.folder or Path(made) / "chaos"
        Path(made).chmod(0o711)  # as root, the services run as another user
        defect = DEFECTS[options.defect] if options.defect else None
        books = Chaos(folder, seed=options.seed, effects=options.effects, defect=defect).run()
    print("\n".join(table(books)))
    for finding in books.findings:
        print(f"FOUND: {finding}")
    print("FAILED" if books.findings else "Nothing was lost, repeated or left open.")
    return 1 if books.findings else 0


if __name__ == "__main__":
    sys.exit(main())
