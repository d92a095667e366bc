"""Training: jobs into slots, the one loop, optimizer and schedule, checkpoint and resume."""
