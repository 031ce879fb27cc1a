#!/usr/bin/env python3
"""Django's command line for Smriti."""

import os
import sys
from pathlib import Path


def main() -> None:
    # `platform/` is an import root, not a package: a package of that name would shadow the standard library's.
    sys.path.insert(1, str(Path(__file__).resolve().parent / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
