from django.apps import AppConfig


class RestConfig(AppConfig):
    name = "kernel.rest"
    label = "kernel_rest"

    def ready(self) -> None:
        from kernel.rest import schema  # noqa: F401  registers how keys are described
