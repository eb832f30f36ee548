"""What runs inside an engine's own process. Nothing here is imported by the command line."""
