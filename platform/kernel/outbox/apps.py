from django.apps import AppConfig


class OutboxConfig(AppConfig):
    name = "kernel.outbox"
    label = "outbox"

    def ready(self) -> None:
        from kernel import outbox
        from kernel.outbox import http

        outbox.register(http.TOPIC, http.deliver)
