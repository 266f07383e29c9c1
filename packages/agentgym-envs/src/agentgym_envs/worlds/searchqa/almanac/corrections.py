"""Corrections and omissions where the sources are outdated, disputed, or have names that are unusable in sentences."""

from __future__ import annotations

NAMES = {
    "AX": "Åland",
    "BL": "Saint Barthélemy",
    "BQ": "Caribbean Netherlands",
    "CW": "Curaçao",
    "NL": "Netherlands",
    "RE": "Réunion",
    "TL": "Timor-Leste",
    "VA": "Vatican City",
}
"""Country names, by ISO code."""

WITH_ARTICLE = frozenset((
    "AE", "BQ", "BS", "CC", "CD", "CF", "CG", "CK", "DO", "FK", "FO", "GB", "GM", "IM", "IO", "KM", "KY", "MH", "MP",
    "MV", "NL", "PH", "SB", "SC", "TC", "TF", "UM", "US", "VG", "VI",
))  # fmt: skip
"""Countries whose name takes "the"."""

NOT_SOVEREIGN = frozenset((
    "AI", "AQ", "AS", "AW", "AX", "BL", "BM", "BQ", "BV", "CC", "CK", "CW", "CX", "EH", "FK", "FO", "GF", "GG", "GI",
    "GL", "GP", "GS", "GU", "HK", "HM", "IM", "IO", "JE", "KY", "MF", "MO", "MP", "MQ", "MS", "NC", "NF", "NU", "PF",
    "PM", "PN", "PR", "PS", "RE", "SH", "SJ", "SX", "TC", "TF", "TK", "TW", "UM", "VG", "VI", "WF", "YT",
))  # fmt: skip
"""Dependencies, and states with limited recognition: they have their own passages, but never answer "which country"."""

LEFT_OUT = frozenset({"AN", "CS", "XK"})
"""Codes that are no longer, or not, in ISO 3166-1."""

NO_CAPITAL = frozenset(["BO", "EH", "GQ", "IL", "KZ", "LK", "MS", "PS", "PW", "ZA"])
"""Countries whose capital is disputed, shared, recently moved or renamed."""

NO_PHONE = frozenset({"VA"})
"""Countries whose calling code is assigned but not in use."""

NO_TLD = frozenset({"BL", "MF"})
"""Territories for which the source has Guadeloupe's domain."""

NO_BORDER = frozenset({("CU", "US"), ("US", "CU")})
"""Pairs that the source lists as neighbours but aren't: Guantanamo Bay is a lease."""

COUNTIES = {"32510": "Carson City county equivalent"}
"""Names of US counties by FIPS code, where a place has the same name."""

COUNTRIES_TOO = frozenset({"CN-HK", "CN-MO", "CN-TW", "FI-01", "NO-21", "NO-22"})
"""Subdivisions in ISO 3166-2 that also have a code in ISO 3166-1."""

APART = frozenset((
    "Arctic region", "Country", "Dependency", "Outlying area", "Overseas collectivity",
    "Overseas collectivity with special status", "Overseas departmental collectivity", "Overseas territory",
    "Overseas unique territorial collectivity", "Pakistan administered area", "Special municipality", "State city",
))  # fmt: skip
"""Types of subdivisions that are or include separate countries and territories, or are disputed."""

KINDS = {
    "Autonomous city in north africa": "autonomous city in North Africa",
    "Chain (of islands)": "chain of islands",
    "Districts under republic administration": "district under republic administration",
    "Group of islands (20 inhabited islands)": "group of islands",
    "Islands, groups of islands": "island or group of islands",
    "London borough": "London borough",
}
"""Wordings of subdivision types in a sentence, where lower-casing isn't enough."""

ODD = frozenset("()/,;[]*†0123456789")
"""Characters that usable names don't contain: marks of notes, translations and numbered quarters."""

ALIASES = {4140963: ("Washington, D.C.", "Washington, DC"), 5128581: ("New York",)}
"""Additional names of places, by GeoNames id."""
