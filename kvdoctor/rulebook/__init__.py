"""Rules: three-valued expressions over facts, rules as TOML data, verdicts, lint, settings."""
