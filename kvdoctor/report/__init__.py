"""Reports: text for a person, JSON for a machine, one line for a log."""
