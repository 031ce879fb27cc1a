"""Every setting, from the environment only, typed and validated at start. A bad value stops the start with one clear line.

Secrets may also come from a file named by `<NAME>_FILE`.
"""

import base64
import sys
from email.utils import parseaddr
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from environs import Env, EnvError, FileAwareEnv

env: Env = FileAwareEnv()
BASE_DIR = Path(__file__).resolve().parents[2]


def database(name: str) -> dict[str, Any]:
    """A database URL as Django's dictionary. Values are bound on the server, so none becomes part of a logged statement."""
    url = urlsplit(env.str(name))
    if url.scheme not in {"postgresql", "postgres"} or not url.path.strip("/"):
        raise EnvError(f"{name} must look like postgresql://user:password@host:port/database")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(url.path.strip("/")),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": url.hostname or "",
        "PORT": str(url.port or 5432),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "DISABLE_SERVER_SIDE_CURSORS": env.bool("TRANSACTION_POOLER", False),
        "OPTIONS": {**dict(parse_qsl(url.query)), "server_side_binding": True, "application_name": "smriti"},
    }


def key_of_32_bytes(name: str) -> bytes:
    try:
        value = base64.b64decode(env.str(name), validate=True)
    except ValueError:
        value = b""
    if len(value) != 32:
        raise EnvError(f"{name} must be base64 of exactly 32 bytes")
    return value


def at_least_one(name: str, default: int) -> int:
    value: int = env.int(name, default)
    if value < 1:
        raise EnvError(f"{name} must be at least 1")
    return value


def artifact_storage() -> dict[str, Any]:
    """A folder under DATA_DIR, or the bucket that is named."""
    bucket = env.str("ARTIFACTS_S3_BUCKET", "")
    if not bucket:
        folder = {"location": str(DATA_DIR / "artifacts")}
        return {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": folder}
    from botocore.config import Config  # takes a while to load

    # Stores other than Amazon's do not all know the newer checksums; every chunk is authenticated anyway.
    client = Config(
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if env.str("ARTIFACTS_S3_ENDPOINT", "") else "auto"},
        signature_version="s3v4",
        connect_timeout=5,
        read_timeout=60,
        max_pool_connections=32,
    )
    options = {
        "bucket_name": bucket,
        "endpoint_url": env.str("ARTIFACTS_S3_ENDPOINT", "") or None,
        "region_name": env.str("ARTIFACTS_S3_REGION", "") or None,
        "access_key": env.str("ARTIFACTS_S3_ACCESS_KEY", "") or None,
        "secret_key": env.str("ARTIFACTS_S3_SECRET_KEY", "") or None,
        "client_config": client,
    }
    return {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}


def clamd_url(name: str) -> str:
    url = env.str(name, "")
    parts = urlsplit(url)
    if url and not ((parts.scheme == "unix" and parts.path) or (parts.scheme == "tcp" and parts.hostname)):
        raise EnvError(f"{name} must look like tcp://host:3310 or unix:///run/clamav/clamd.ctl")
    return url


def mail_server(name: str) -> dict[str, Any]:
    """Django's settings for a mail server; without one, e-mails become files under DATA_DIR."""
    url = env.str(name, "")
    parts = urlsplit(url)
    if not url:
        return {"BACKEND": "django.core.mail.backends.filebased.EmailBackend", "FILE_PATH": str(DATA_DIR / "mail")}
    if parts.scheme not in {"smtp", "smtp+tls", "smtps"} or not parts.hostname:
        raise EnvError(f"{name} must look like smtp+tls://user:password@host:587, smtps://host:465 or smtp://host:25")
    return {
        "BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "HOST": parts.hostname,
        "PORT": parts.port or {"smtp": 25, "smtp+tls": 587, "smtps": 465}[parts.scheme],
        "HOST_USER": unquote(parts.username or ""),
        "HOST_PASSWORD": unquote(parts.password or ""),
        "USE_TLS": parts.scheme == "smtp+tls",
        "USE_SSL": parts.scheme == "smtps",
    }


def mail_address(name: str, default: str) -> str:
    value: str = env.str(name, default)
    if "@" not in parseaddr(value)[1] or len(value.splitlines()) != 1:
        raise EnvError(f"{name} must be an e-mail address, such as Smriti <smriti@example.com>")
    return value


try:
    SECRET_KEY = env.str("SECRET_KEY")
    MASTER_KEY = key_of_32_bytes("MASTER_KEY")
    BASE_URL = env.str("BASE_URL", "http://127.0.0.1:8000").rstrip("/")
    WAITS_URL = env.str("WAITS_URL", BASE_URL).rstrip("/")
    BROKER_URL = env.str("BROKER_URL")
    DATA_DIR = Path(env.str("DATA_DIR", str(BASE_DIR / ".smriti")))
    DATABASES = {"default": database("DATABASE_URL"), "vault": database("VAULT_DATABASE_URL")}
    # Only the migrating process is given the owner's URLs.
    if env.str("OWNER_DATABASE_URL", ""):
        DATABASES["owner"] = database("OWNER_DATABASE_URL")
    if env.str("VAULT_OWNER_DATABASE_URL", ""):
        DATABASES["vault_owner"] = database("VAULT_OWNER_DATABASE_URL")
    ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", [urlsplit(BASE_URL).hostname or "", "127.0.0.1", "localhost"])
    LOG_LEVEL = env.str("LOG_LEVEL", "INFO").upper()
    RATE_LIMIT = env.int("RATE_LIMIT", 300_000)  # requests a minute for each API key; 0: none
    METRICS_TOKEN = env.str("METRICS_TOKEN", "")  # `/metrics` answers who sends it; without one, nobody
    HOT_POOL_SIZE = env.int("HOT_POOL_SIZE", 8)
    WEB_THREADS = env.int("WEB_THREADS", 4)  # that answer requests in a web process, as its server was told
    # A pooler in transaction mode stands before PostgreSQL: nothing may be prepared on a connection, or kept on it.
    TRANSACTION_POOLER = env.bool("TRANSACTION_POOLER", False)
    OUTBOX_CONCURRENCY = at_least_one("OUTBOX_CONCURRENCY", 16)  # messages that one host sends at the same time
    OUTBOX_SEND_SECONDS = at_least_one("OUTBOX_SEND_SECONDS", 10)  # the longest that one attempt takes
    OUTBOX_MAX_ATTEMPTS = at_least_one("OUTBOX_MAX_ATTEMPTS", 50)
    OUTBOX_MAX_AGE_HOURS = at_least_one("OUTBOX_MAX_AGE_HOURS", 72)  # then a message is given up
    OUTBOX_KEEP_DAYS = at_least_one("OUTBOX_KEEP_DAYS", 7)  # rows of what was sent or skipped
    OUTBOX_PORTS = frozenset(env.list("OUTBOX_PORTS", [80, 443], subcast=int))  # where requests may go
    # Networks that requests may reach although they are not public, such as 10.1.0.0/16.
    OUTBOX_ALLOW_PRIVATE = tuple(env.list("OUTBOX_ALLOW_PRIVATE", [], subcast=ip_network))
    WEBHOOK_FAILING_DAYS = at_least_one("WEBHOOK_FAILING_DAYS", 5)  # an endpoint that fails so long is switched off
    WEBHOOK_KEEP_DAYS = at_least_one("WEBHOOK_KEEP_DAYS", 30)  # what was sent, to be seen and sent again
    MAIL = mail_server("EMAIL_URL")
    DEFAULT_FROM_EMAIL = mail_address("EMAIL_FROM", f"Smriti <smriti@{urlsplit(BASE_URL).hostname}>")
    STREAM_HEARTBEAT = env.float("STREAM_HEARTBEAT", 15.0)  # seconds; a quiet stream says so often that it is alive
    STREAMS_PER_TENANT = env.int("STREAMS_PER_TENANT", 5000)  # live streams of a tenant that one process keeps open
    ARTIFACT_STORAGE = artifact_storage()
    ARTIFACT_MAX_BYTES = env.int("ARTIFACT_MAX_BYTES", 10 * 1024**3)
    # Patterns such as image/*; none allowed: every type.
    ARTIFACT_TYPES_ALLOWED: list[str] = env.list("ARTIFACT_TYPES_ALLOWED", [])
    ARTIFACT_TYPES_DENIED: list[str] = env.list("ARTIFACT_TYPES_DENIED", [])
    ARTIFACT_URL_SECONDS = env.int("ARTIFACT_URL_SECONDS", 600)  # how long a signed address may be used
    ARTIFACT_TRANSFERS = env.int("ARTIFACT_TRANSFERS", 64)  # uploads and downloads at a time, in one process
    OFFLOAD_BYTES = env.int("OFFLOAD_BYTES", 1024**2)  # sealed payloads above it lie with the artifacts
    CLAMD_URL = clamd_url("CLAMD_URL")
    CLAMD_MAX_BYTES = env.int("CLAMD_MAX_BYTES", 100 * 1024**2)  # clamd calls clean what is larger than its own limits
except EnvError as error:
    if "pytest" in sys.modules or "mypy" in sys.modules:
        raise ImproperlyConfigured(str(error)) from error
    sys.exit(f"Smriti cannot start: {error}")

SECURE = BASE_URL.startswith("https://")

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "csp",
    "guardian",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "kernel",
    "kernel.rest",
    "kernel.outbox",
    "audit",
    "tenancy",
    "privacy",
    "privacy.vault",
    "notices",
    "runs",
    "approvals",
]
# Object permissions stand in tables of the tenant (approvals.PolicyPermission); guardian's own, generic ones are never made.
MIGRATION_MODULES = {"guardian": None}
ANONYMOUS_USER_NAME = None
GUARDIAN_MONKEY_PATCH_USER = GUARDIAN_MONKEY_PATCH_GROUP = False

# Pages only. The API is served without these: it has no sessions, cookies or forms (config.wsgi).
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "kernel.web.storage.StaticMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "kernel.web.preferences.ZoneMiddleware",
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
ASGI_APPLICATION = "config.asgi.application"
DATABASE_ROUTERS = ["config.routers.VaultRouter"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "kernel.web.frame.frame",
            ],
            "builtins": ["kernel.web.tags"],
        },
    }
]

# People
AUTH_USER_MODEL = "tenancy.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_ADAPTER = "tenancy.ui.account.ClosedDoor"
ACCOUNT_FORMS = {"login": "tenancy.ui.account.SignIn", "change_password": "tenancy.ui.account.ChangePassword"}
ACCOUNT_SESSION_REMEMBER = False
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "tenancy:home"
ACCOUNT_LOGOUT_REDIRECT_URL = "account_login"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE
SESSION_COOKIE_AGE = 12 * 3600
CSRF_TRUSTED_ORIGINS = [BASE_URL]
CSRF_FAILURE_VIEW = "kernel.web.errors.csrf_failure"

# E-mail
EMAIL_BACKEND = MAIL["BACKEND"]
EMAIL_FILE_PATH = MAIL.get("FILE_PATH")
EMAIL_HOST, EMAIL_PORT = MAIL.get("HOST", "localhost"), MAIL.get("PORT", 25)
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = MAIL.get("HOST_USER", ""), MAIL.get("HOST_PASSWORD", "")
EMAIL_USE_TLS, EMAIL_USE_SSL = MAIL.get("USE_TLS", False), MAIL.get("USE_SSL", False)
EMAIL_TIMEOUT = OUTBOX_SEND_SECONDS

# Transport and content
SECURE_SSL_REDIRECT = False  # the proxy in front does it
SECURE_HSTS_SECONDS = 31_536_000 if SECURE else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = SECURE
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if SECURE else None
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SILENCED_SYSTEM_CHECKS = [
    "security.W008",  # the proxy in front redirects to https
    "guardian.W001",  # object permissions are judged by the database (approvals_judge), not by a backend
    "auth.W004",  # e-mails are unique without regard to case, by an index the check does not see
]
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}

STATIC_URL = "/static/"
STATIC_ROOT = DATA_DIR / "static"
WHITENOISE_USE_FINDERS = True
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "kernel.web.storage.StaticStorage"},
    "artifacts": ARTIFACT_STORAGE,
}

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("hi", "हिन्दी")]
LOCALE_PATHS = [BASE_DIR / "templates" / "locale"]

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["tenancy.api.authentication.KeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
    "EXCEPTION_HANDLER": "kernel.rest.problems.exception_handler",
    "DEFAULT_SCHEMA_CLASS": "kernel.rest.schema.Schema",
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Smriti API",
    "DESCRIPTION": "Durable runs, work and their log for AI agents. Every error is an RFC 9457 problem with a stable code.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "ENABLE_DJANGO_DEPLOY_CHECK": False,
    "POSTPROCESSING_HOOKS": ["kernel.rest.schema.finish"],
}

CELERY_BROKER_URL = BROKER_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_timeout": 2, "socket_connect_timeout": 1}
CELERY_BEAT_SCHEDULE = {
    "runs.sweep": {"task": "runs.sweep", "schedule": 1.0},
    "runs.send_probes": {"task": "runs.send_probes", "schedule": 1.0},
    "runs.fire_schedules": {"task": "runs.fire_schedules", "schedule": 1.0},
    "approvals.sweep": {"task": "approvals.sweep", "schedule": 1.0},
    "outbox.dispatch": {"task": "outbox.dispatch", "schedule": 1.0},
    "outbox.purge": {"task": "outbox.purge", "schedule": 60.0},
    "notices.purge": {"task": "notices.purge", "schedule": 3600.0},
    "audit.seal_all": {"task": "audit.seal_all", "schedule": 5.0},
    "runs.count_metrics": {"task": "runs.count_metrics", "schedule": 10.0},
    "runs.anchor_heads": {"task": "runs.anchor_heads", "schedule": 300.0},
    "runs.sweep_artifacts": {"task": "runs.sweep_artifacts", "schedule": 10.0},
    "runs.sweep_offloads": {"task": "runs.sweep_offloads", "schedule": 300.0},
    "runs.reconcile_objects": {"task": "runs.reconcile_objects", "schedule": 6 * 3600.0},
}

REQUEST_BODY_LIMIT = 32 * 1024 * 1024  # bytes; the largest commit
DATA_UPLOAD_MAX_MEMORY_SIZE = REQUEST_BODY_LIMIT

LOGGING_CONFIG = "kernel.logging.configure"
LOGGING = LOG_LEVEL
