"""Generates the private messages of the agent's account: one thread per partner, each containing a fact to look up."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.names import TOWNS

LETTERS = 36
_FILLERS: Mapping[str, tuple[str, ...]] = {
    "place": ("the station clock", "the library steps", "the ferry ticket office", "the bakery", "the old fountain"),
    "time": ("8:15", "10:40", "11:20", "12:50", "14:05", "15:35", "16:10", "17:45", "18:25", "19:10", "20:55"),
    "day": ("Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "object": ("record player", "bread tin", "chess clock", "field guide", "typewriter", "tent", "reading lamp"),
    "price": ("14", "18", "23", "27", "32", "36", "41", "45", "58", "64", "75"),
    "book": (
        "The Salt Ledger", "A Winter at Cawdry", "Nine Ferries", "The Clockmender's Niece", "Low Water",
        "Letters to a Lighthouse", "The Quiet Orchard", "Half a Bridge", "Rope and Tallow", "The Last Timetable",
    ),
}  # fmt: skip
_LETTERS = (
    (
        "Meeting up in {town}",
        "It was good to talk about that post of yours. I am in {town} on {day}, shall we meet at {place}?",
        "Gladly! When would suit you?",
        "Let us say {time} at {place}. I will have a green scarf.",
    ),
    (
        "The {object} you asked about",
        "You wrote that you were looking for a {object}. Mine is in the attic and wants a new home.",
        "I am. What would you want for it?",
        "I thought of {price} crowns. You would have to fetch it in {town}.",
    ),
    (
        "Something to read",
        "After your review I wanted to send you one back.",
        "Please do, my pile is nearly gone.",
        "Then read {book}. I finished it on the way to {town} and missed my stop.",
    ),
    (
        "Address for the parcel",
        "The parcel with your paperbacks is ready. I only need somebody who is at home.",
        "My neighbour always is. Where do I write, if I want to thank you?",
        "Mill Row {number}, {town}. The bell is broken, so please knock.",
    ),
)


def write_letters(db: sqlite3.Connection, random: Random, mine: int) -> None:
    """Write threads between `mine` and other members, the newest of them in the last days."""
    strangers = "SELECT id FROM accounts WHERE id != ? AND id NOT IN (SELECT blocked FROM blocks) ORDER BY id"
    partners = random.sample([row[0] for row in db.execute(strangers, (mine,))], LETTERS)
    ages = sorted((random.randrange(2, 500) for _ in partners), reverse=True)
    for number, (partner, age) in enumerate(zip(partners, ages, strict=True)):
        subject, *lines = _LETTERS[number % len(_LETTERS)]
        words = {name: random.choice(choices) for name, choices in _FILLERS.items()}
        words |= {"town": random.choice(TOWNS), "number": str(random.randrange(2, 98))}
        thread = db.execute(
            "INSERT INTO threads (subject, sender, receiver) VALUES (?, ?, ?)", (subject.format(**words), partner, mine)
        ).lastrowid
        sent = NOW - timedelta(days=age, minutes=random.randrange(600))
        for line, author in zip(lines, (partner, mine, partner), strict=True):
            sent += timedelta(minutes=random.randrange(8, 500))
            db.execute(
                "INSERT INTO messages (thread, author, body, created) VALUES (?, ?, ?, ?)",
                (thread, author, line.format(**words), f"{sent:%Y-%m-%d %H:%M:00}"),
            )
