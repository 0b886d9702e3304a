"""The parts of `experiments.leaderboard`: tasks, tuning, jobs, the table and its pages."""
