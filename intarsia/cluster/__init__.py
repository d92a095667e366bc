"""More than one machine: the queue and the service on Ray. Only the modules that say so import Ray (extra `ray`)."""
