"""Where the bytes of artifacts lie: a folder, or a bucket of an S3-compatible store, as STORAGES["artifacts"] says.

Invariant: an object is there whole or not at all, is never overwritten, and is on disk when `finish` returns. Keys are
`<tenant>/<object>`, both UUIDs in hex, so that a listing is in the order of age and no name that a client chose reaches a path.
"""

from django.core.files.storage import FileSystemStorage, storages

from runs.storage.port import ObjectMissing, ObjectStore, Reader, Writer

__all__ = ["ObjectMissing", "ObjectStore", "Reader", "Writer", "store"]


def store() -> ObjectStore:
    """The store that the settings name."""
    backend = storages["artifacts"]
    if isinstance(backend, FileSystemStorage):
        from runs.storage.folder import Folder

        return Folder(backend)
    from runs.storage.bucket import Bucket  # its client takes a while to load, and memory

    return Bucket(backend)
