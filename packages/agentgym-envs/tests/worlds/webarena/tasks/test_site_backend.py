"""Tests of the embedded sites' setup of an episode."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from statistics import correlation, mean
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.sites import store
from agentgym_envs.worlds.webarena.sites.directory import PLACES, SKIN_HEADER
from agentgym_envs.worlds.webarena.tasks.site_backend import EmbeddedSites


@pytest.fixture
def embedded() -> Iterator[EmbeddedSites]:
    backend = EmbeddedSites()
    yield backend
    backend.close()


async def _open_no_session(_options: Any) -> Any:
    raise AssertionError("The embedded sites need no log-in.")


@pytest.mark.parametrize(
    ("sites", "signed_in"),
    [
        (["shopping"], {"shopping"}),  # a shopper isn't the shop's administrator
        (["shopping_admin", "wikipedia"], {"shopping_admin"}),
        (["gitlab", "reddit"], {"gitlab", "reddit"}),
        (["map"], set[str]()),
    ],
)
def test_agent_is_signed_in_to_the_sites_of_the_task(
    embedded: EmbeddedSites, sites: list[str], signed_in: set[str]
) -> None:
    task = {"sites": sites, "start_url": f"__{sites[0].upper()}__"}
    setup = asyncio.run(embedded.prepare(task, _open_no_session))
    assert {cookie["url"] for cookie in setup.options["cookies"]} == {PLACES[key].url for key in signed_in}


def test_skin_of_the_task_is_sent_with_every_request(embedded: EmbeddedSites) -> None:
    task = {"sites": ["map"], "start_url": "__MAP__"}
    for skin in ("plain", "rough"):
        setup = asyncio.run(embedded.prepare({**task, "skin": skin}, _open_no_session))
        assert setup.options["headers"][SKIN_HEADER] == skin
    assert asyncio.run(embedded.prepare(task, _open_no_session)).options["headers"][SKIN_HEADER] == "plain"


def test_skus_tell_neither_ids_nor_categories() -> None:
    """A page can't be opened with the digits of its product's SKU, except by chance: ids ascend by category."""
    with closing(sqlite3.connect(store.database("shop"))) as db:
        products = db.execute("SELECT id, category, sku FROM products").fetchall()
    assert len({sku for _, _, sku in products}) == len(products)
    assert mean(int(sku.rpartition("-")[2]) == product for product, _, sku in products) < 0.01
    for start in range(3):  # two digits of the first group
        codes = [int(sku.split("-")[1][start : start + 2]) for _, _, sku in products]
        assert abs(correlation(codes, [category for _, category, _ in products])) < 0.1
