"""Training: jobs take slots, one loop trains them, and checkpoints allow a killed run to resume."""
