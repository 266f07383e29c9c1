CREATE TABLE accounts (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    password TEXT NOT NULL,
    bio TEXT NOT NULL DEFAULT '',
    joined TEXT NOT NULL
);
CREATE TABLE communities (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    title TEXT NOT NULL,
    about TEXT NOT NULL,
    guide TEXT NOT NULL DEFAULT '',
    created TEXT NOT NULL,
    subscribers INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE rules (
    community INTEGER NOT NULL REFERENCES communities (id),
    position INTEGER NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (community, position)
) WITHOUT ROWID;
CREATE TABLE moderators (
    community INTEGER NOT NULL REFERENCES communities (id),
    account INTEGER NOT NULL REFERENCES accounts (id),
    PRIMARY KEY (community, account)
) WITHOUT ROWID;
CREATE TABLE flairs (
    community INTEGER NOT NULL REFERENCES communities (id),
    name TEXT NOT NULL,
    PRIMARY KEY (community, name)
) WITHOUT ROWID;
CREATE TABLE posts (
    id INTEGER PRIMARY KEY,
    community INTEGER NOT NULL REFERENCES communities (id),
    author INTEGER NOT NULL REFERENCES accounts (id),
    title TEXT NOT NULL,
    body TEXT NOT NULL DEFAULT '',
    url TEXT,
    scene TEXT, -- what its picture shows
    picture INTEGER, -- number of its picture: the id of the post that it was first posted in
    flair TEXT NOT NULL DEFAULT '',
    created TEXT NOT NULL,
    edited TEXT,
    ups INTEGER NOT NULL DEFAULT 0,
    downs INTEGER NOT NULL DEFAULT 0,
    score INTEGER GENERATED ALWAYS AS (ups - downs) VIRTUAL,
    comments INTEGER NOT NULL DEFAULT 0,
    pinned INTEGER NOT NULL DEFAULT 0,
    locked INTEGER NOT NULL DEFAULT 0,
    removed INTEGER NOT NULL DEFAULT 0, -- by a moderator
    deleted INTEGER NOT NULL DEFAULT 0 -- by its author
);
CREATE INDEX posts_by_community ON posts (community, created);
CREATE INDEX posts_by_author ON posts (author);
CREATE INDEX posts_by_time ON posts (created);
CREATE TABLE comments (
    id INTEGER PRIMARY KEY,
    post INTEGER NOT NULL REFERENCES posts (id),
    parent INTEGER REFERENCES comments (id),
    author INTEGER NOT NULL REFERENCES accounts (id),
    body TEXT NOT NULL,
    created TEXT NOT NULL,
    edited TEXT,
    ups INTEGER NOT NULL DEFAULT 0,
    downs INTEGER NOT NULL DEFAULT 0,
    score INTEGER GENERATED ALWAYS AS (ups - downs) VIRTUAL,
    removed INTEGER NOT NULL DEFAULT 0,
    deleted INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX comments_by_post ON comments (post);
CREATE INDEX comments_by_author ON comments (author);
CREATE TABLE post_votes (
    account INTEGER NOT NULL REFERENCES accounts (id),
    post INTEGER NOT NULL REFERENCES posts (id),
    value INTEGER NOT NULL CHECK (value IN (-1, 1)),
    PRIMARY KEY (account, post)
) WITHOUT ROWID;
CREATE TABLE comment_votes (
    account INTEGER NOT NULL REFERENCES accounts (id),
    comment INTEGER NOT NULL REFERENCES comments (id),
    value INTEGER NOT NULL CHECK (value IN (-1, 1)),
    PRIMARY KEY (account, comment)
) WITHOUT ROWID;
CREATE TABLE saves (
    account INTEGER NOT NULL REFERENCES accounts (id),
    post INTEGER NOT NULL REFERENCES posts (id),
    PRIMARY KEY (account, post)
) WITHOUT ROWID;
CREATE TABLE subscriptions (
    account INTEGER NOT NULL REFERENCES accounts (id),
    community INTEGER NOT NULL REFERENCES communities (id),
    PRIMARY KEY (account, community)
) WITHOUT ROWID;
CREATE TABLE blocks (
    account INTEGER NOT NULL REFERENCES accounts (id),
    blocked INTEGER NOT NULL REFERENCES accounts (id),
    PRIMARY KEY (account, blocked)
) WITHOUT ROWID;
CREATE TABLE bans (
    community INTEGER NOT NULL REFERENCES communities (id),
    account INTEGER NOT NULL REFERENCES accounts (id),
    reason TEXT NOT NULL DEFAULT '',
    created TEXT NOT NULL,
    PRIMARY KEY (community, account)
) WITHOUT ROWID;
CREATE TABLE threads (
    id INTEGER PRIMARY KEY,
    subject TEXT NOT NULL,
    sender INTEGER NOT NULL REFERENCES accounts (id),
    receiver INTEGER NOT NULL REFERENCES accounts (id)
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL REFERENCES threads (id),
    author INTEGER NOT NULL REFERENCES accounts (id),
    body TEXT NOT NULL,
    created TEXT NOT NULL
);
CREATE INDEX messages_by_thread ON messages (thread);
CREATE TABLE notifications (
    account INTEGER NOT NULL REFERENCES accounts (id),
    comment INTEGER NOT NULL REFERENCES comments (id),
    seen INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (account, comment)
) WITHOUT ROWID;
