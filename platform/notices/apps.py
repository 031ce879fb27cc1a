from django.apps import AppConfig


class NoticesConfig(AppConfig):
    name = "notices"

    def ready(self) -> None:
        from kernel import outbox
        from notices import kinds
        from notices.operations import mail, telling, webhooks

        kinds.register_own()
        outbox.register(telling.TOPIC, webhooks.deliver)
        outbox.register(mail.TOPIC, mail.deliver)
