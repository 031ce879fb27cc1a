from django.apps import AppConfig


class PrivacyConfig(AppConfig):
    name = "privacy"

    def ready(self) -> None:
        from kernel import ports
        from privacy.codec import TenantCodec

        ports.install_codec(TenantCodec())
