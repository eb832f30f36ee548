"""Speed, memory and fidelity, measured side by side in one run: see README.md."""
