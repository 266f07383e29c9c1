"""The kinds of places: their numbers per town, names and opening hours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of place."""

    name: str
    plural: str
    layer: str
    """Map layer: `food`, `stay`, `culture`, `health`, `shops`, `transport`, `public` or `nature`."""
    least: int
    """Number in a small town."""
    most: int
    """Number in a large town."""
    names: tuple[str, ...] = ()
    """Possible names; `{town}` is replaced by the town's name, `{street}` by the street's."""
    hours: tuple[str, ...] = ("",)


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


_SHOP_HOURS = _split("Mon–Sat 09:00–18:00|Mon–Fri 08:30–18:30, Sat 09:00–13:00|Mon–Sat 08:00–19:00")
_CAFE_HOURS = _split("Mon–Sat 08:00–17:00|Daily 07:30–16:30|Tue–Sun 09:00–18:00|Daily 08:00–20:00")
_MEAL_HOURS = _split("Daily 12:00–22:00|Tue–Sun 17:30–23:00|Wed–Mon 12:00–14:30, 18:00–22:30")
_MUSEUM_HOURS = _split("Tue–Sun 10:00–17:00|Daily 09:30–16:30|Wed–Mon 11:00–18:00|Thu–Sun 10:00–16:00")

_ALL = (
    Kind("town", "towns", "public", 0, 0),
    Kind("café", "cafés", "food", 2, 4, _split(
        "The Copper Kettle|Café Lindgren|Two Spoons|The Window Seat|Half Past Nine|The Crumb|Milk & Slate|Café Orla|"
        "The Paper Cup|Blue Door Coffee|Saucer & Sons|The Slow Clock|Corner Roast|Café Marrow|The Warm Loaf"
    ), _CAFE_HOURS),
    Kind("restaurant", "restaurants", "food", 2, 4, _split(
        "The Salt Table|Osteria Fenn|Barley & Bream|The Long Oven|Lotte's Kitchen|The Green Ladle|Saffron House|"
        "The Herring Room|Three Onions|Dario's|The Chestnut|Noodle Yard|The Quiet Pig|Number Eleven"
    ), _MEAL_HOURS),
    Kind("pub", "pubs", "food", 1, 3, _split(
        "The Drover's Rest|The Anchor|The Old Plough|The Three Herons|The Miller's Arms|The Ship Aground|The Bell|"
        "The Fox and Lantern|The Wheatsheaf|The Tollgate"
    ), _split("Daily 11:00–23:00|Mon–Thu 16:00–23:00, Fri–Sun 12:00–00:00|Daily 12:00–22:30")),
    Kind("bakery", "bakeries", "food", 1, 2, _split(
        "{town} Bakehouse|The Rye Basket|Ellery's Bakery|Crust & Crumb|The Early Oven"
    ), _split("Mon–Sat 06:30–14:00|Tue–Sun 07:00–15:00")),
    Kind("hotel", "hotels", "stay", 1, 3, _split(
        "Hotel {town}|The Grand {town}|The Station Hotel|The King's Head Hotel|Harbour Lights Hotel|Hotel Meridian|"
        "The Walled Garden Hotel|The Postmaster's House"
    ), ("Reception open 24 hours",)),
    Kind("hostel", "hostels", "stay", 0, 1, ("{town} Youth Hostel", "The Haybarn Hostel"), ("Reception 07:00–22:00",)),
    Kind("campsite", "campsites", "stay", 0, 1, ("{town} Meadow Campsite", "Larch Wood Campsite"), (
        "Apr–Oct, reception 08:00–20:00",
    )),
    Kind("museum", "museums", "culture", 1, 2, _split(
        "{town} Museum|{town} Museum of Clocks|{town} Railway Museum|{town} Museum of Glass|{town} Art Museum|"
        "{town} Museum of Rural Life|{town} Maritime Museum|{town} Museum of Toys|{town} Mining Museum"
    ), _MUSEUM_HOURS),
    Kind("cinema", "cinemas", "culture", 0, 1, ("{town} Electric Cinema", "The Regal", "The Picture House"), (
        "Daily 14:00–23:30",
    )),
    Kind("theatre", "theatres", "culture", 0, 1, ("{town} Playhouse", "The Little Theatre"), (
        "Box office Tue–Sat 11:00–19:00",
    )),
    Kind("library", "libraries", "culture", 0, 1, ("{town} Public Library",), _split(
        "Mon–Fri 09:00–18:00|Tue–Sat 10:00–17:00"
    )),
    Kind("hospital", "hospitals", "health", 0, 1, (
        "{town} General Hospital", "St. Alma's Hospital",
    ), ("Open 24 hours",)),
    Kind("pharmacy", "pharmacies", "health", 1, 2, _split(
        "{street} Pharmacy|{town} Pharmacy|The Mortar Pharmacy|Larkin Chemists"
    ), _SHOP_HOURS),
    Kind("dentist", "dentists", "health", 0, 1, ("{town} Dental Practice", "{street} Dentists"), (
        "Mon–Fri 08:00–17:00",
    )),
    Kind("supermarket", "supermarkets", "shops", 1, 2, _split(
        "Fairway Foods|Marlow's Supermarket|Pantry & Co|Daybreak Market"
    ), _split("Mon–Sat 07:00–22:00, Sun 10:00–16:00|Daily 08:00–21:00")),
    Kind("bookshop", "bookshops", "shops", 0, 1, _split(
        "The Dog-Eared Page|{town} Books|The Spine|Quill & Folio"
    ), _SHOP_HOURS),
    Kind("bicycle shop", "bicycle shops", "shops", 0, 1, _split("{town} Cycles|The Spoke|Chain & Bell"), _SHOP_HOURS),
    Kind("bank", "banks", "shops", 0, 1, _split("Harrowland Savings Bank|Mercer Bank"), ("Mon–Fri 09:00–16:30",)),
    Kind("railway station", "railway stations", "transport", 0, 1, ("{town} Railway Station",), ("Daily 05:00–00:30",)),
    Kind("petrol station", "petrol stations", "transport", 1, 1, ("{town} Service Station", "Halfway Garage"), (
        "Open 24 hours", "Daily 06:00–22:00",
    )),
    Kind("post office", "post offices", "public", 1, 1, ("{town} Post Office",), _split(
        "Mon–Fri 09:00–17:30, Sat 09:00–12:30|Mon–Fri 08:30–17:00"
    )),
    Kind("police station", "police stations", "public", 0, 1, ("{town} Police Station",), ("Open 24 hours",)),
    Kind("school", "schools", "public", 1, 2, _split("{town} Primary School|{town} Grammar School|{street} School"), (
        "Mon–Fri 08:00–16:00",
    )),
    Kind("university", "universities", "public", 0, 0, ("University of {town}",), ("Mon–Fri 08:00–20:00",)),
    Kind("swimming pool", "swimming pools", "public", 0, 1, ("{town} Baths", "{town} Swimming Pool"), (
        "Daily 06:30–21:00", "Tue–Sun 07:00–20:00",
    )),
    Kind("park", "parks", "nature", 1, 2, _split(
        "{town} Park|The Long Meadow|Jubilee Gardens|Botanic Garden of {town}|The Old Orchard|Riverside Gardens"
    ), _split("Daily 07:00–20:00|Open at all times")),
    Kind("hill", "hills", "nature", 0, 0),
    Kind("lake", "lakes", "nature", 0, 0),
    Kind("castle", "castles", "culture", 0, 0, (), ("Apr–Oct daily 10:00–17:00",)),
    Kind("abbey", "abbeys", "culture", 0, 0, (), ("Daily 09:00–17:00",)),
    Kind("bridge", "bridges", "culture", 0, 0, (), ("Open at all times",)),
    Kind("viaduct", "viaducts", "culture", 0, 0, (), ("Open at all times",)),
    Kind("town hall", "town halls", "public", 0, 0, (), ("Mon–Fri 08:30–16:30",)),
    Kind("market hall", "market halls", "shops", 0, 0, (), ("Mon–Sat 07:30–15:00",)),
    Kind("guildhall", "guildhalls", "culture", 0, 0, (), ("Sat–Sun 11:00–16:00",)),
    Kind("windmill", "windmills", "culture", 0, 0, (), ("Sun 10:00–15:00",)),
    Kind("observatory", "observatories", "culture", 0, 0, (), ("Fri–Sat 20:00–23:30",)),
    Kind("assembly rooms", "assembly rooms", "culture", 0, 0, (), ("Mon–Sat 10:00–18:00",)),
    Kind("lighthouse", "lighthouses", "culture", 0, 0, (), ("May–Sep Sat–Sun 11:00–17:00",)),
    Kind("customs house", "customs houses", "culture", 0, 0, (), ("Tue–Fri 10:00–15:00",)),
)  # fmt: skip
KINDS = {kind.name: kind for kind in _ALL}
"""The kinds by name."""
LAYERS = {
    "food": "Food and drink",
    "stay": "Places to stay",
    "culture": "Culture and sights",
    "health": "Health",
    "shops": "Shops and money",
    "transport": "Transport",
    "public": "Public services",
    "nature": "Parks and nature",
}
"""Display name of each layer."""
