"""``python -m kvdoctor``."""

from kvdoctor.cli import run

run()
