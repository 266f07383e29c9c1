-- What visitors see of rows that tasks change, without time stamps. `store` keeps the initial rows of these views.
CREATE VIEW post_contents AS SELECT id, community, author, title,
    trim(replace(body, char(13), ''), ' ' || char(9) || char(10)) AS body, coalesce(url, '') AS url, picture, flair,
    pinned, locked, removed FROM posts WHERE NOT deleted;
