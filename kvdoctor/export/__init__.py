"""Rules as Prometheus alerts, a Grafana dashboard, and a lint for the user's own: the same knowledge in other tools."""
