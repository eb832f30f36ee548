"""``kvdoctor explain NAME``: what a verdict, fact, flag, metric or log line means."""

from __future__ import annotations

from typing import Annotated

import typer

from kvdoctor.cli import common, options


def explain(
    name: Annotated[
        str, typer.Argument(help="A verdict (name or ID), fact, lever, flag, metric, or a log line in quotes.")
    ],
    rules: options.Rules = None,
) -> None:
    """Say what a verdict, fact, flag, metric or log line means.

    \b
    Examples:
      kvdoctor explain admission-thrash
      kvdoctor explain max-num-seqs
      kvdoctor explain vllm:num_preemptions_total
    """
    from kvdoctor.pages import explain as page
    from kvdoctor.pages import near

    active, _ = common.settings(None, rules or (), ())
    text = page(name, active)
    if text is None:
        close = near(name, active)
        common.fail(
            f"nothing is known under {name}"
            + (f"; did you mean {', '.join(close)}?" if close else "; see: kvdoctor rules list")
        )
    common.write(text, None)
