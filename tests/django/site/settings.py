"""A tiny project: one app, one database, Holdfast behind its tasks."""

import json
import os
from pathlib import Path

import django

FOLDER = Path(os.environ["SITE_FOLDER"])
SECRET_KEY = "not a secret"
USE_TZ = True
INSTALLED_APPS = ["holdfast.django", "shop"]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")
DATABASES = json.loads(os.environ.get("SITE_DATABASES", "{}")) or {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(FOLDER / "site.db")}
}
TASKS = {
    "default": {
        "BACKEND": "holdfast.django.HoldfastBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {
            "url": os.environ.get("SITE_JOBS", f"sqlite:///{FOLDER}/jobs.db"),
            "max_attempts": 2,
            "backoff": "constant(10ms)",
            "modules": ["extra"],
        },
    }
}
