from django.apps import AppConfig


class VaultConfig(AppConfig):
    name = "privacy.vault"
    label = "vault"
