"""The pictures in posts: SVGs that are a deterministic function of a scene and a number."""

from __future__ import annotations

from random import Random

from markupsafe import Markup

_SKIES = {
    "early morning": ("#f7d9c4", "#fbeee0"),
    "noon": ("#9ecbe8", "#d9edf7"),
    "evening": ("#e8a06b", "#f3d19c"),
    "dusk": ("#5a5f8c", "#a98fb0"),
}
_GREENS = ("#4d7a52", "#6b9462", "#3f6450", "#88a35a")
_WARM = ("#b5533c", "#c98a4b", "#8a5a44", "#d8b26e", "#7c6a8f")


def picture(scene: str, number: int, width: int = 640) -> Markup:
    """Return an SVG of a scene such as `hills, evening`, `width` pixels wide; its accessible name describes it."""
    what, _, moment = scene.partition(", ")
    random = Random(number)
    top, bottom = ("#10162f", "#2c3560") if what == "night sky" else _SKIES[moment]
    shapes = "".join(_DRAWN[what](random))
    name = f"Picture: {what}, {moment}"
    return Markup(
        f'<svg class="picture" viewBox="0 0 320 200" width="{width}" role="img" aria-label="{name}">'
        f'<defs><linearGradient id="s{number}" x2="0" y2="1"><stop stop-color="{top}"/>'
        f'<stop offset="1" stop-color="{bottom}"/></linearGradient></defs>'
        f'<rect width="320" height="200" fill="url(#s{number})"/>{shapes}</svg>'
    )


def _hills(random: Random) -> list[str]:
    sun = f'<circle cx="{random.randrange(40, 280)}" cy="{random.randrange(30, 80)}" r="16" fill="#fff3c4"/>'
    return [sun] + [
        f'<path d="M-20 200Q{random.randrange(20, 140)} {60 + 30 * i} {random.randrange(150, 190)} {120 + 18 * i}'
        f'T340 {100 + 25 * i}V200Z" fill="{random.choice(_GREENS)}" opacity=".9"/>'
        for i in range(3)
    ]


def _sea(random: Random) -> list[str]:
    x = random.randrange(60, 240)
    boat = f'<path d="M{x} 118h44l-9 14h-27z" fill="#8a3b2e"/><path d="M{x + 20} 70v46h-20z" fill="#fff"/>'
    waves = [f'<path d="M0 {140 + 16 * i}q40 -8 80 0t80 0t80 0t80 0" stroke="#cfe3ee" fill="none"/>' for i in range(3)]
    return ['<rect y="124" width="320" height="76" fill="#3f6f92"/>', boat, *waves]


def _town(random: Random) -> list[str]:
    houses: list[str] = []
    for x in range(0, 320, 46):
        height = random.randrange(50, 110)
        houses.append(f'<rect x="{x}" y="{200 - height}" width="42" height="{height}" fill="{random.choice(_WARM)}"/>')
        houses.append(f'<path d="M{x - 3} {200 - height}l24 -22l24 22z" fill="#5b3a35"/>')
        houses.append(f'<rect x="{x + 14}" y="{214 - height}" width="12" height="15" fill="#ffe9a8"/>')
    return houses


def _garden(random: Random) -> list[str]:
    ground = '<rect y="150" width="320" height="50" fill="#6d5240"/>'
    return [ground] + [
        f'<path d="M{x} 160v-{random.randrange(30, 70)}" stroke="{random.choice(_GREENS)}" stroke-width="4"/>'
        f'<circle cx="{x}" cy="{random.randrange(85, 125)}" r="{random.randrange(8, 15)}"'
        f' fill="{random.choice(_WARM)}"/>'
        for x in range(24, 310, 34)
    ]


def _table(random: Random) -> list[str]:
    cloth = f'<rect y="130" width="320" height="70" fill="{random.choice(_WARM)}"/>'
    x = random.randrange(50, 120)
    cup = f'<rect x="{x}" y="92" width="52" height="52" rx="8" fill="#f4f1ea"/>'
    handle = f'<circle cx="{x + 56}" cy="115" r="13" fill="none" stroke="#f4f1ea" stroke-width="7"/>'
    loaf = f'<ellipse cx="{x + 140}" cy="130" rx="52" ry="26" fill="#a9713f"/>'
    return [cloth, cup, handle, loaf]


def _night(random: Random) -> list[str]:
    stars = [
        f'<circle cx="{random.randrange(320)}" cy="{random.randrange(150)}"'
        f' r="{random.choice((0.8, 1.2, 2))}" fill="#fff"/>'
        for _ in range(45)
    ]
    return [*stars, '<path d="M0 200V170Q90 140 170 168T320 160V200Z" fill="#0b0f1f"/>']


_DRAWN = {"hills": _hills, "sea": _sea, "town": _town, "garden": _garden, "table": _table, "night sky": _night}
