CREATE TABLE places (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    town TEXT NOT NULL,
    street TEXT NOT NULL,
    number INTEGER,
    postcode TEXT NOT NULL,
    x REAL NOT NULL,
    y REAL NOT NULL,
    lat REAL NOT NULL,
    lon REAL NOT NULL,
    phone TEXT NOT NULL,
    hours TEXT NOT NULL,
    website TEXT NOT NULL,
    wheelchair TEXT NOT NULL,
    stars INTEGER,
    note TEXT NOT NULL,
    found_by TEXT NOT NULL
);
CREATE INDEX places_town ON places (town, kind, name);
CREATE INDEX places_kind ON places (kind);
CREATE INDEX places_name ON places (name);

CREATE TABLE streets (
    id INTEGER PRIMARY KEY,
    town TEXT NOT NULL,
    name TEXT NOT NULL,
    points TEXT NOT NULL
);
CREATE INDEX streets_town ON streets (town);
