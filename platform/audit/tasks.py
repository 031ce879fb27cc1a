"""The sweep that seals what sealing after commit missed: a crash between the two, or a database that was busy."""

from celery import shared_task

from audit import operations


@shared_task(name="audit.seal_all")
def seal_all(**kwargs: object) -> None:
    operations.seal_all()
