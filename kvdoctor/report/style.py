"""The look of the HTML report: two sets of colours (paper and dark screens) and one style sheet. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "panel": "#f5f7f9",
    "ink": "#1b2127",
    "muted": "#555f6a",
    "edge": "#ccd3da",
    "link": "#0b5cad",
    "good": "#1a6b35",
    "warn": "#855000",
    "poor": "#b3261e",
    "s1": "#0b62a8",
    "s2": "#a84b00",
    "s3": "#b3261e",
    "s4": "#00695c",
    "m0": "#a9cff2",
    "m1": "#f6cd92",
    "m2": "#aee0ca",
    "m3": "#ebbedb",
    "m4": "#cfc9f2",
    "m5": "#ede08e",
    "free": "#ffffff",
    "gap": "#d9dee3",
}
DARK: Mapping[str, str] = {
    "paper": "#13171c",
    "panel": "#1c2229",
    "ink": "#e7edf3",
    "muted": "#a2adb9",
    "edge": "#3b444e",
    "link": "#79bbff",
    "good": "#63cf86",
    "warn": "#eaaf4b",
    "poor": "#ff8f86",
    "s1": "#6cb6ff",
    "s2": "#ffa65c",
    "s3": "#ff8f86",
    "s4": "#52d0b8",
    "m0": "#1d5a93",
    "m1": "#7d4c04",
    "m2": "#14604a",
    "m3": "#7a3c66",
    "m4": "#524a96",
    "m5": "#625a10",
    "free": "#13171c",
    "gap": "#47515c",
}
BADGES: Mapping[str, str] = {
    "critical": "#8a0f0f",
    "high": "#b3261e",
    "medium": "#855000",
    "low": "#0b5f78",
    "info": "#0b5cad",
    "healthy": "#1a6b35",
    "undetermined": "#555f6a",
}
"""Behind white letters, on paper and on dark screens."""

_SHEET = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
header,main,footer{max-width:62rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:1.5rem}
h1{font-size:1.65rem;line-height:1.25;margin:.5rem 0 .25rem}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;padding-bottom:.2rem;border-bottom:1px solid var(--edge)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
p,ul,ol,dl{margin:.4rem 0}
a{color:var(--link)}
.badge{display:inline-block;padding:.1rem .6rem;border-radius:.25rem;color:#fff;font-weight:700;font-size:.85rem;letter-spacing:.04em;border:1px solid var(--edge)}
.quiet,caption,figcaption{color:var(--muted)}
nav ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:.9rem}
dl.verdict{display:grid;grid-template-columns:5.5rem 1fr;gap:.55rem .75rem;background:var(--panel);border:1px solid var(--edge);border-radius:.4rem;padding:1rem 1.1rem}
dl.verdict dt{font-weight:700}
dl.verdict dd{margin:0}
dl.verdict .first{font-weight:700}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem;margin:.3rem 0 .6rem}
caption{text-align:left;font-size:.88rem;padding:.15rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .75rem .3rem 0;border-bottom:1px solid var(--edge);unicode-bidi:isolate;overflow-wrap:break-word}
td:last-child,tbody th{overflow-wrap:anywhere}
td:last-child:not(.n){min-width:11rem}
thead th{color:var(--muted);font-weight:600;white-space:nowrap}
tbody th{font-weight:400;min-width:8rem}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.value{font-weight:700}
.keep{white-space:nowrap}
.ok{color:var(--good);font-weight:700}
.watch,.unknown{color:var(--warn);font-weight:700}
.bad{color:var(--poor);font-weight:700}
pre{background:var(--panel);border:1px solid var(--edge);border-radius:.3rem;padding:.6rem .8rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
section>ul>li{margin:.45rem 0}
ol.levers>li{margin:.7rem 0;padding-left:.2rem}
.swatch{display:inline-block;min-width:1.3rem;padding:0 .3rem;border:1px solid var(--edge);text-align:center;margin-right:.4rem}
figure{margin:.8rem 0 1.1rem}
figure h3{margin:0}
.draw{overflow-x:auto}
svg{display:block;max-width:100%}
.draw svg{width:100%;min-width:34rem}
svg text{font-size:11px;fill:var(--muted)}
svg .grid{stroke:var(--edge);stroke-width:1}
svg .event{stroke:var(--muted);stroke-width:1;stroke-dasharray:1 3}
svg .mark{stroke:var(--ink);stroke-width:1;stroke-dasharray:7 4}
svg .mark2{stroke:var(--ink);stroke-width:1;stroke-dasharray:2 3}
svg .number{font-weight:700}
svg .curve{fill:none;stroke-width:2;stroke-linejoin:round}
svg .curve.s2{stroke-dasharray:6 3}
svg .s1{stroke:var(--s1);fill:var(--s1)}
svg .s2{stroke:var(--s2);fill:var(--s2)}
svg .s3{fill:var(--s3)}
svg .s4{stroke:var(--s4);fill:var(--s4)}
svg .curve.s1,svg .curve.s2,svg .curve.s4{fill:none}
svg text.name{stroke:none;font-size:12px}
svg text.name.mark,svg text.name.mark2{fill:var(--ink)}
svg .track{stroke:var(--edge);stroke-width:3}
svg .interval{stroke:var(--s1);stroke-width:6;opacity:.45}
svg.stack{width:100%;height:auto;border:1px solid var(--edge)}
svg.stack rect{stroke:var(--paper);stroke-width:1}
svg.stack .letter{fill:var(--ink);font-size:13px;font-weight:700}
footer{margin:2.5rem auto 1.5rem;font-size:.85rem}
@media(max-width:40rem){dl.verdict{grid-template-columns:1fr;gap:.1rem}dl.verdict dd{margin-bottom:.6rem}}
@media print{body{font-size:10pt}nav{display:none}header,main,footer{max-width:none;padding:0}h2,h3{break-after:avoid}figure,tr,li,dl,pre{break-inside:avoid}tbody tr:first-child{break-before:avoid}table{font-size:8.5pt}.wide,.draw{overflow:visible}.draw svg{min-width:0}.badge,.swatch,svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def sheet() -> str:
    """The style sheet. Dark colours are for screens that ask for them, never for paper."""
    light = _variables(LIGHT)
    dark = f"@media screen and (prefers-color-scheme:dark){{{_variables(DARK)}}}"
    parts = [f":root{{color-scheme:light dark}}{light}{dark}", _SHEET.strip()]
    parts += [f".badge.{name}{{background:{colour}}}" for name, colour in BADGES.items()]
    for name in LIGHT:
        if name in ("free", "gap") or (name[0] == "m" and name[1:].isdigit()):
            parts.append(f"svg.stack .{name}{{fill:var(--{name})}}.swatch.{name}{{background:var(--{name})}}")
    return "\n".join(parts)


def _variables(colours: Mapping[str, str]) -> str:
    return ":root{" + ";".join(f"--{name}:{colour}" for name, colour in colours.items()) + "}"
