CREATE TABLE articles (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    infobox TEXT NOT NULL,
    body TEXT NOT NULL
);

CREATE TABLE redirects (
    title TEXT PRIMARY KEY,
    article INTEGER NOT NULL REFERENCES articles (id)
);

CREATE TABLE links (
    source INTEGER NOT NULL REFERENCES articles (id),
    target INTEGER NOT NULL REFERENCES articles (id),
    PRIMARY KEY (source, target)
) WITHOUT ROWID;
CREATE INDEX links_target ON links (target);

CREATE TABLE categories (
    name TEXT NOT NULL,
    article INTEGER NOT NULL REFERENCES articles (id),
    PRIMARY KEY (name, article)
) WITHOUT ROWID;
CREATE INDEX categories_article ON categories (article);
