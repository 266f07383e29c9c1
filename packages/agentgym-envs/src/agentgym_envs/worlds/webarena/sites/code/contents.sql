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
