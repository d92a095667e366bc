"""Models, tasks, jobs and files that several tests share."""
