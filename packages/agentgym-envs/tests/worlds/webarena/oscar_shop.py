"""An unmodified django-oscar shop from PyPI on 127.0.0.1: `python oscar_shop.py FOLDER`.

The script creates the shop's database `shop.sqlite` in FOLDER, prints its port, and exits at the end of its standard
input. Guests can order; shipping is free, and there is no payment.
"""

from __future__ import annotations

import os
import sys
import threading
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django
import oscar
import oscar.defaults
from django.apps import apps
from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.templatetags.static import static
from django.urls import include, path

BOOKS = {
    "Gardens": {"A Year of Moss": "18.50", "The Patient Gardener": "24.00", "Hedges and How to Lay Them": "31.25"},
    "Kitchen": {"Bread in Cold Weather": "15.75", "The Patient Gardener's Cookbook": "22.40", "Forty Soups": "12.95"},
}
"""Titles and prices in pounds, by category."""
CONTEXTS = [
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
    "django.template.context_processors.request",
    "oscar.apps.checkout.context_processors.checkout",
    "oscar.apps.search.context_processors.search_form",
    "oscar.core.context_processors.metadata",
]
COUNTRIES = {"GB": "United Kingdom", "IE": "Ireland", "NO": "Norway"}


class Pictures:
    """A thumbnailer that returns a placeholder image, since oscar's own needs another package."""

    def generate_thumbnail(self, source: Any, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(url=static("oscar/img/image_not_found.jpg"), **options)


class NoMigrations:
    """Create the tables directly from the models, since running all migrations takes a minute."""

    def __contains__(self, app: str) -> bool:
        return True

    def __getitem__(self, app: str) -> None:
        return None


def configure(folder: Path) -> None:
    """Configure Django with oscar's defaults and the settings that its documentation requires."""
    defaults = {name: value for name, value in vars(oscar.defaults).items() if name.startswith("OSCAR_")}
    overrides = {
        "OSCAR_SHOP_NAME": "Books",
        "OSCAR_ALLOW_ANON_CHECKOUT": True,
        "OSCAR_THUMBNAILER": "__main__.Pictures",
    }
    settings.configure(
        **defaults | overrides,
        ALLOWED_HOSTS=["127.0.0.1"],
        SECRET_KEY="of a shop that nobody buys from",
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": folder / "shop.sqlite",
                "ATOMIC_REQUESTS": True,
                "OPTIONS": {"timeout": 20},
            }
        },
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        MIGRATION_MODULES=NoMigrations(),
        INSTALLED_APPS=oscar.INSTALLED_APPS,
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
            "oscar.apps.basket.middleware.BasketMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": CONTEXTS},
            }
        ],
        HAYSTACK_CONNECTIONS={"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}},
        EMAIL_BACKEND="django.core.mail.backends.dummy.EmailBackend",
        SITE_ID=1,
        STATIC_URL="/static/",
        USE_TZ=True,
    )
    django.setup()
    settings.ROOT_URLCONF = (
        path("i18n/", include("django.conf.urls.i18n")),
        path("", include(apps.get_app_config("oscar").urls[0])),
    )


def fill() -> None:
    """Create the tables and fill them."""
    call_command("migrate", run_syncdb=True, verbosity=0)
    from oscar.apps.catalogue.categories import create_from_breadcrumbs
    from oscar.core.loading import get_model

    for code, name in COUNTRIES.items():
        get_model("address", "Country").objects.create(
            iso_3166_1_a2=code, name=name, printable_name=name, is_shipping_country=True
        )
    kind = get_model("catalogue", "ProductClass").objects.create(name="Book")
    partner = get_model("partner", "Partner").objects.create(name="A publisher")
    for section, books in BOOKS.items():
        category = create_from_breadcrumbs(section)
        for title, price in books.items():
            book = get_model("catalogue", "Product").objects.create(
                title=title, product_class=kind, description=f"A book called {title}."
            )
            get_model("catalogue", "ProductCategory").objects.create(product=book, category=category)
            book.stockrecords.create(partner=partner, partner_sku=title, price=Decimal(price), num_in_stock=9)


def serve() -> None:
    """Serve until standard input ends."""
    server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
    server.daemon_threads = True
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    configure(Path(sys.argv[1]))
    fill()
    serve()
