"""The settings of jobs and trainings, and how they travel: options, configurations, environment."""
