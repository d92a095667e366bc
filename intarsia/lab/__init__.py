"""Tables and figures, drawn from results."""
