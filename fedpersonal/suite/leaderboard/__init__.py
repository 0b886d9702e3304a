"""The leaderboard: its tasks, the tuning, the jobs, the table and its pages."""
