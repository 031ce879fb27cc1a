"""Static files under names that carry their hash once `collectstatic` was run, under their plain names before that.

A development server, the tests and the embedded topology serve the files from the packages and need no build step; an image
that was built with `collectstatic` serves them compressed and cached for ever.
"""

from pathlib import Path

from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.storage import CompressedManifestStaticFilesStorage


class StaticStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]  # whitenoise carries no types
    manifest_strict = False

    def stored_name(self, name: str) -> str:
        found: str = self.hashed_files.get(self.hash_key(self.clean_name(name)), name)
        return found


class StaticMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]  # as above
    def add_files(self, root: str, prefix: str | None = None) -> None:
        """As whitenoise, without its warning about a folder that only `collectstatic` makes."""
        if Path(root).is_dir():
            super().add_files(root, prefix)
