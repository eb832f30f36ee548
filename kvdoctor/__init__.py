"""Tells what is really wrong when an LLM inference server runs out of GPU memory."""
