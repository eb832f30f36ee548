"""Tells what is really wrong when an LLM inference server runs out of GPU memory."""

__version__ = "0.1.0"
