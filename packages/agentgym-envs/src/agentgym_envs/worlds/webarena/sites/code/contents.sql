-- What visitors see of rows that tasks change, without time stamps. `store` keeps the initial rows of these views.
-- Issues and merge requests can't be deleted: one that was made in the episode and closed again counts as gone.
CREATE VIEW issue_contents AS SELECT id, project, title,
    trim(replace(body, char(13), ''), ' ' || char(9) || char(10)) AS body, state, milestone, due, weight, confidential,
    (SELECT group_concat(account) FROM (SELECT account FROM issue_assignees WHERE issue = issues.id ORDER BY 1))
        AS people,
    (SELECT group_concat(label) FROM (SELECT label FROM issue_labels WHERE issue = issues.id ORDER BY 1)) AS labels
    FROM issues WHERE NOT (state = 'closed' AND created >= '2025-06-16');
CREATE VIEW merge_contents AS SELECT id, project, title,
    trim(replace(body, char(13), ''), ' ' || char(9) || char(10)) AS body, source, target, state, merged_by, milestone,
    assignee, reviewer, label,
    (SELECT group_concat(account) FROM (SELECT account FROM approvals WHERE merge = merges.id ORDER BY 1)) AS approvals
    FROM merges WHERE NOT (state = 'closed' AND created >= '2025-06-16');
CREATE VIEW ssh_key_contents AS SELECT account, title, key, count(*) AS copies FROM ssh_keys GROUP BY 1, 2, 3;
CREATE VIEW deploy_key_contents AS SELECT project, title, key, can_push, count(*) AS copies FROM deploy_keys
    GROUP BY 1, 2, 3, 4;
CREATE VIEW project_contents AS SELECT id, namespace, path, name, description, visibility, default_branch, archived,
    (SELECT group_concat(topic) FROM (SELECT topic FROM topics WHERE project = projects.id ORDER BY 1)) AS topics
    FROM projects;
CREATE VIEW member_contents AS SELECT project, account, role, expires FROM members;
CREATE VIEW account_contents AS SELECT id, name, full_name, email, bio, job, location, status FROM accounts;
CREATE VIEW file_contents AS SELECT project, path, content FROM files;
-- The files whose text differs from the initial one in more than blanks at the ends of lines, and new ones.
CREATE VIEW plain_texts AS SELECT id, rtrim(replace(replace(replace(replace(text, char(13), ''),
    '    ' || char(10), char(10)), '  ' || char(10), char(10)), ' ' || char(10), char(10)), ' ' || char(9) || char(10))
    AS text FROM contents;
CREATE VIEW changed_files AS SELECT now.project, now.path, new.text FROM files AS now
    JOIN plain_texts AS new ON new.id = now.content
    LEFT JOIN initial_file_contents AS start ON start.project = now.project AND start.path = now.path
    LEFT JOIN plain_texts AS old ON old.id = start.content
    WHERE now.content IS NOT start.content AND new.text IS NOT old.text;
