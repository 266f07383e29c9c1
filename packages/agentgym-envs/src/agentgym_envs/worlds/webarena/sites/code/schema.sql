-- Workbench, the code host. Times are 'YYYY-MM-DD HH:MM', days 'YYYY-MM-DD'. Roles: 10 guest, 20 reporter, 30 developer,
-- 40 maintainer, 50 owner.
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, full_name TEXT NOT NULL, password TEXT NOT NULL,
    email TEXT NOT NULL, bio TEXT NOT NULL DEFAULT '', job TEXT NOT NULL DEFAULT '', location TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL DEFAULT '', created TEXT NOT NULL
);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, name TEXT NOT NULL, description TEXT NOT NULL,
    visibility TEXT NOT NULL, created TEXT NOT NULL
);
CREATE TABLE group_members (
    group_id INTEGER NOT NULL REFERENCES groups (id), account INTEGER NOT NULL REFERENCES accounts (id),
    role INTEGER NOT NULL, created TEXT NOT NULL, PRIMARY KEY (group_id, account)
) WITHOUT ROWID;
CREATE TABLE projects (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, path TEXT NOT NULL, name TEXT NOT NULL, description TEXT NOT NULL,
    visibility TEXT NOT NULL, language TEXT NOT NULL, licence TEXT NOT NULL, stars INTEGER NOT NULL DEFAULT 0,
    forks INTEGER NOT NULL DEFAULT 0, default_branch TEXT NOT NULL DEFAULT 'main', archived INTEGER NOT NULL DEFAULT 0,
    fork_of INTEGER REFERENCES projects (id) ON DELETE SET NULL, created TEXT NOT NULL, updated TEXT NOT NULL,
    UNIQUE (namespace, path)
);
CREATE TABLE topics (
    project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, topic TEXT NOT NULL,
    PRIMARY KEY (project, topic)
) WITHOUT ROWID;
CREATE TABLE members (
    project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    account INTEGER NOT NULL REFERENCES accounts (id), role INTEGER NOT NULL, expires TEXT, created TEXT NOT NULL,
    PRIMARY KEY (project, account)
) WITHOUT ROWID;
CREATE INDEX members_by_account ON members (account);
CREATE TABLE stars (
    account INTEGER NOT NULL REFERENCES accounts (id),
    project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, PRIMARY KEY (account, project)
) WITHOUT ROWID;
CREATE TABLE contents (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE files (
    project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, path TEXT NOT NULL,
    content INTEGER NOT NULL REFERENCES contents (id), PRIMARY KEY (project, path)
) WITHOUT ROWID;
CREATE TABLE branches (
    project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, name TEXT NOT NULL, created TEXT NOT NULL,
    PRIMARY KEY (project, name)
) WITHOUT ROWID;
-- A commit touches one file: `lines` lines from `line` on are new in it and replace the text `old`. Where `patch` is
-- given, these lines are not in the file yet (the commit is on a branch of its own) but would stand before `line`.
CREATE TABLE commits (
    id INTEGER PRIMARY KEY, project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, branch TEXT NOT NULL,
    sha TEXT NOT NULL, author INTEGER NOT NULL REFERENCES accounts (id), created TEXT NOT NULL, message TEXT NOT NULL,
    path TEXT NOT NULL, line INTEGER NOT NULL, lines INTEGER NOT NULL, old INTEGER REFERENCES contents (id),
    patch INTEGER REFERENCES contents (id), merge INTEGER
);
CREATE INDEX commits_by_branch ON commits (project, branch, created);
CREATE INDEX commits_by_author ON commits (author);
CREATE INDEX commits_by_merge ON commits (merge) WHERE merge IS NOT NULL;
CREATE TABLE tags (
    project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, name TEXT NOT NULL,
    commit_id INTEGER NOT NULL REFERENCES commits (id) ON DELETE CASCADE, created TEXT NOT NULL,
    title TEXT NOT NULL DEFAULT '', notes TEXT, PRIMARY KEY (project, name)
) WITHOUT ROWID;
CREATE TABLE labels (
    id INTEGER PRIMARY KEY, project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, name TEXT NOT NULL,
    colour TEXT NOT NULL, description TEXT NOT NULL, UNIQUE (project, name)
);
CREATE TABLE milestones (
    id INTEGER PRIMARY KEY, project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, iid INTEGER NOT NULL,
    title TEXT NOT NULL, description TEXT NOT NULL, start TEXT, due TEXT, state TEXT NOT NULL, UNIQUE (project, title)
);
CREATE TABLE issues (
    id INTEGER PRIMARY KEY, project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, iid INTEGER NOT NULL,
    title TEXT NOT NULL, body TEXT NOT NULL, author INTEGER NOT NULL REFERENCES accounts (id), state TEXT NOT NULL,
    created TEXT NOT NULL, updated TEXT NOT NULL, closed TEXT,
    milestone INTEGER REFERENCES milestones (id) ON DELETE SET NULL, due TEXT, weight INTEGER,
    confidential INTEGER NOT NULL DEFAULT 0, UNIQUE (project, iid)
);
CREATE INDEX issues_by_author ON issues (author);
CREATE INDEX issues_by_milestone ON issues (milestone) WHERE milestone IS NOT NULL;
CREATE TABLE issue_labels (
    issue INTEGER NOT NULL REFERENCES issues (id) ON DELETE CASCADE,
    label INTEGER NOT NULL REFERENCES labels (id) ON DELETE CASCADE, PRIMARY KEY (issue, label)
) WITHOUT ROWID;
CREATE INDEX issue_labels_by_label ON issue_labels (label);
CREATE TABLE issue_assignees (
    issue INTEGER NOT NULL REFERENCES issues (id) ON DELETE CASCADE,
    account INTEGER NOT NULL REFERENCES accounts (id), PRIMARY KEY (issue, account)
) WITHOUT ROWID;
CREATE INDEX issue_assignees_by_account ON issue_assignees (account);
CREATE TABLE merges (
    id INTEGER PRIMARY KEY, project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, iid INTEGER NOT NULL,
    title TEXT NOT NULL, body TEXT NOT NULL, author INTEGER NOT NULL REFERENCES accounts (id), source TEXT NOT NULL,
    target TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, merged TEXT,
    merged_by INTEGER REFERENCES accounts (id), milestone INTEGER REFERENCES milestones (id) ON DELETE SET NULL,
    assignee INTEGER REFERENCES accounts (id), reviewer INTEGER REFERENCES accounts (id),
    label INTEGER REFERENCES labels (id) ON DELETE SET NULL, UNIQUE (project, iid)
);
CREATE INDEX merges_by_author ON merges (author);
CREATE INDEX merges_by_reviewer ON merges (reviewer);
CREATE INDEX merges_by_assignee ON merges (assignee);
CREATE TABLE approvals (
    merge INTEGER NOT NULL REFERENCES merges (id) ON DELETE CASCADE,
    account INTEGER NOT NULL REFERENCES accounts (id), PRIMARY KEY (merge, account)
) WITHOUT ROWID;
CREATE TABLE comments (
    id INTEGER PRIMARY KEY, issue INTEGER REFERENCES issues (id) ON DELETE CASCADE,
    merge INTEGER REFERENCES merges (id) ON DELETE CASCADE, author INTEGER NOT NULL REFERENCES accounts (id),
    body TEXT NOT NULL, created TEXT NOT NULL, system INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX comments_by_issue ON comments (issue) WHERE issue IS NOT NULL;
CREATE INDEX comments_by_merge ON comments (merge) WHERE merge IS NOT NULL;
CREATE TABLE todos (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id),
    issue INTEGER REFERENCES issues (id) ON DELETE CASCADE, merge INTEGER REFERENCES merges (id) ON DELETE CASCADE,
    author INTEGER NOT NULL REFERENCES accounts (id), action TEXT NOT NULL, created TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX todos_by_account ON todos (account, done);
CREATE TABLE ssh_keys (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id), title TEXT NOT NULL, key TEXT NOT NULL,
    created TEXT NOT NULL
);
CREATE TABLE deploy_keys (
    id INTEGER PRIMARY KEY, project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE, title TEXT NOT NULL,
    key TEXT NOT NULL, can_push INTEGER NOT NULL, created TEXT NOT NULL
);
CREATE TABLE snippets (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id), title TEXT NOT NULL, file TEXT NOT NULL,
    content INTEGER NOT NULL REFERENCES contents (id), visibility TEXT NOT NULL, created TEXT NOT NULL
);
CREATE TABLE follows (
    follower INTEGER NOT NULL REFERENCES accounts (id), followed INTEGER NOT NULL REFERENCES accounts (id),
    PRIMARY KEY (follower, followed)
) WITHOUT ROWID;
CREATE INDEX follows_by_followed ON follows (followed);
