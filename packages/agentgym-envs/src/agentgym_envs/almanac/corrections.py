"""Where the sources are out of date, disputed or call a country as no sentence would: what we say, or leave out, instead."""

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

COUNTIES = {"32510": "Carson City (county equivalent)"}
"""Names of US counties, by FIPS code: this one is a place as well."""
