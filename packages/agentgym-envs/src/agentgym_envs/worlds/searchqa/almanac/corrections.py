"""What we say, or leave out, where the sources are out of date or disputed, or use names that no sentence would."""

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

WITH_ARTICLE = frozenset(
    [
        "AE",
        "BQ",
        "BS",
        "CC",
        "CD",
        "CF",
        "CG",
        "CK",
        "DO",
        "FK",
        "FO",
        "GB",
        "GM",
        "IM",
        "IO",
        "KM",
        "KY",
        "MH",
        "MP",
        "MV",
        "NL",
        "PH",
        "SB",
        "SC",
        "TC",
        "TF",
        "UM",
        "US",
        "VG",
        "VI",
    ]
)
"""Countries whose name takes "the"."""

NOT_SOVEREIGN = frozenset(
    [
        "AI",
        "AQ",
        "AS",
        "AW",
        "AX",
        "BL",
        "BM",
        "BQ",
        "BV",
        "CC",
        "CK",
        "CW",
        "CX",
        "EH",
        "FK",
        "FO",
        "GF",
        "GG",
        "GI",
        "GL",
        "GP",
        "GS",
        "GU",
        "HK",
        "HM",
        "IM",
        "IO",
        "JE",
        "KY",
        "MF",
        "MO",
        "MP",
        "MQ",
        "MS",
        "NC",
        "NF",
        "NU",
        "PF",
        "PM",
        "PN",
        "PR",
        "PS",
        "RE",
        "SH",
        "SJ",
        "SX",
        "TC",
        "TF",
        "TK",
        "TW",
        "UM",
        "VG",
        "VI",
        "WF",
        "YT",
    ]
)
"""Dependencies, and states that not all others recognise: named by themselves, never the answer to "which country"."""

LEFT_OUT = frozenset({"AN", "CS", "XK"})
"""Codes that are no longer, or not, in ISO 3166-1."""

NO_CAPITAL = frozenset(["BO", "EH", "GQ", "IL", "KZ", "LK", "MS", "PS", "PW", "ZA"])
"""Countries whose capital is disputed, shared, recently moved or renamed."""

NO_PHONE = frozenset({"VA"})
"""The code is assigned and not in use."""

NO_TLD = frozenset({"BL", "MF"})
"""The source gives the domain of Guadeloupe."""

NO_BORDER = frozenset({("CU", "US"), ("US", "CU")})
"""Guantanamo Bay is a lease."""

COUNTIES = {"32510": "Carson City county equivalent"}
"""Names of US counties, by FIPS code: this one is a place as well."""

COUNTRIES_TOO = frozenset({"CN-HK", "CN-MO", "CN-TW", "FI-01", "NO-21", "NO-22"})
"""Subdivisions in ISO 3166-2 that have a code of their own in ISO 3166-1."""

APART = frozenset(
    {
        "Arctic region",
        "Country",
        "Dependency",
        "Outlying area",
        "Overseas collectivity",
        "Overseas collectivity with special status",
        "Overseas departmental collectivity",
        "Overseas territory",
        "Overseas unique territorial collectivity",
        "Pakistan administered area",
        "Special municipality",
        "State city",
    }
)
"""Types of subdivisions that are, or include, countries and territories of their own, or are disputed."""

KINDS = {
    "Autonomous city in north africa": "autonomous city in North Africa",
    "Chain (of islands)": "chain of islands",
    "Districts under republic administration": "district under republic administration",
    "Group of islands (20 inhabited islands)": "group of islands",
    "Islands, groups of islands": "island or group of islands",
    "London borough": "London borough",
}
"""Types of subdivisions as they stand in a sentence, where lower case isn't enough."""

ODD = frozenset("()/,;[]*†0123456789")
"""What names in a sentence don't contain: signs of notes, of translations and of numbered quarters."""

ALIASES = {4140963: ("Washington, D.C.", "Washington, DC"), 5128581: ("New York",)}
"""More names of places, by GeoNames id."""
