"""The forum: communities, posts, comments in trees, votes, profiles, messages, moderation."""
