"""How the report looks: its style sheet, for light and dark screens, telephones and paper.

Owns colours, type and widths. Colours have one meaning each: well, attention, lost, and neutral for the rest.
The rule: nothing is fetched, so there are no fonts and pictures but those that every machine has.
"""

from __future__ import annotations

from typing import Final

_LIGHT: Final = """
  --paper: #ffffff; --tint: #f5f6f8; --line: #dfe3e8; --ink: #1b1f24; --soft: #5a6370;
  --well: #1a7f4b; --attention: #b45f06; --lost: #c21f2c; --neutral: #94a0ad; --accent: #2d5fa6;
"""
_DARK: Final = """
  --paper: #15181c; --tint: #1d2126; --line: #31373e; --ink: #e7e9ec; --soft: #a0a9b4;
  --well: #4cc38a; --attention: #f0a541; --lost: #ff7076; --neutral: #66717e; --accent: #82aef0;
"""

STYLE: Final = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n"
    f"@media print {{ :root {{ color-scheme: light; {_LIGHT} }} }}\n"
    """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main, header, footer { max-width: 74rem; margin: 0 auto; padding: 0 clamp(1rem, 3vw, 2rem); }
header { padding-top: 2.25rem; }
a { color: var(--accent); }
h1, h2, h3 { line-height: 1.25; text-wrap: balance; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: clamp(1.45rem, 3.4vw, 2.1rem); font-weight: 650; letter-spacing: -0.012em; }
h2 { margin: 0 0 0.35rem; font-size: 1.25rem; font-weight: 650; }
h3 { margin: 1.75rem 0 0.5rem; font-size: 1rem; font-weight: 600; }
p { margin: 0 0 0.75rem; max-width: 46rem; }
section { margin-top: 2.75rem; scroll-margin-top: 1rem; }
code { font: 0.9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
footer { margin-top: 3rem; padding-bottom: 2.5rem; color: var(--soft); font-size: 0.875rem; }
.about { margin: 0 0 1rem; color: var(--soft); overflow-wrap: anywhere; }
.note, .lead, .none { color: var(--soft); }
.note { margin: 0.9rem 0 0; }
.soft { display: block; color: var(--soft); font-size: 0.8125rem; font-weight: 400; }

.verdict {
  display: flex; gap: 1rem; align-items: flex-start; padding: 1.25rem 1.4rem;
  background: var(--tint); border-left: 5px solid var(--tone); border-radius: 4px;
}
.mark {
  flex: none; width: 2.1rem; height: 2.1rem; border-radius: 50%; background: var(--tone); color: var(--paper);
  font-weight: 700; font-size: 1.2rem; line-height: 2.1rem; text-align: center; margin-top: 0.15rem;
}
.well { --tone: var(--well); } .attention { --tone: var(--attention); }
.lost { --tone: var(--lost); } .neutral { --tone: var(--neutral); }
strong.lost, strong.attention { color: var(--tone); }

nav { margin-top: 1.25rem; font-size: 0.9rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.3rem 1.1rem; margin: 0; padding: 0; list-style: none; }
nav a { text-decoration: none; } nav a:hover { text-decoration: underline; }

.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(6.9rem, 1fr)); margin: 1.5rem 0 0;
  border: 1px solid var(--line); border-radius: 4px; overflow: hidden;
}
.tiles div { padding: 0.7rem 1rem; box-shadow: 1px 1px 0 var(--line); }
.tiles dt { color: var(--soft); font-size: 0.8125rem; }
.tiles dd {
  margin: 0; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
.tiles .lost dd, .tiles .attention dd { color: var(--tone); }

.scroll { overflow-x: auto; margin-top: 0.9rem; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.45rem 1.1rem 0.45rem 0; text-align: left; vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
thead th {
  color: var(--soft); font-size: 0.8125rem; font-weight: 500; white-space: nowrap; vertical-align: bottom;
  border-bottom: 1px solid var(--line);
}
tbody th { font-weight: 600; min-width: 8rem; max-width: 19rem; overflow-wrap: anywhere; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
td { overflow-wrap: break-word; max-width: 26rem; min-width: 0; }
td.text { min-width: 7rem; overflow-wrap: anywhere; }
td.figure, th.figure { text-align: right; white-space: nowrap; }
td.drawn { min-width: 13rem; width: 30%; }
details { margin-top: 0.75rem; } summary { cursor: pointer; color: var(--accent); width: fit-content; }

svg { display: block; }
.bar { width: 100%; height: 0.65rem; margin: 0.4rem 0 0.3rem; border-radius: 2px; background: var(--tint); }
.part { fill: var(--tone); stroke: var(--paper); stroke-width: 1; vector-effect: non-scaling-stroke; }
.key { display: inline-block; white-space: nowrap; margin-right: 0.8rem; }
.key::before {
  content: ""; display: inline-block; width: 0.6em; height: 0.6em; border-radius: 2px; margin-right: 0.4em;
  background: var(--tone); print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
.panels {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); gap: 1rem 1.75rem;
}
figure { margin: 0; min-width: 0; }
figcaption { color: var(--soft); font-size: 0.8125rem; margin-bottom: 0.2rem; overflow-wrap: anywhere; }
figcaption strong { color: var(--ink); }
.plot { width: 100%; height: auto; max-width: 34rem; }
.plot text { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.plot .label { fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--line); } .axis, .tick { stroke: var(--neutral); }
.line { fill: none; stroke: var(--accent); stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.line.p50 { stroke-width: 2.4; } .line.p95 { stroke-dasharray: 6 4; stroke-opacity: 0.9; }
.line.p99 { stroke-dasharray: 0.5 4.5; }
.flows { width: 100%; min-width: 54rem; height: auto; }
.flows text {
  fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums;
  paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round;
}
.flows .name { fill: var(--ink); font-weight: 600; }
.flows .heading { font-size: 12px; }
.node { fill: var(--ink); }
.link { fill: var(--tone); fill-opacity: 0.3; }
.link.attention, .link.lost { fill-opacity: 0.6; }
dl.words {
  display: grid; grid-template-columns: minmax(8rem, auto) 1fr; gap: 0.45rem 1.5rem; max-width: 54rem;
}
dl.words dt { font-weight: 600; } dl.words dd { margin: 0; color: var(--soft); }

@media (max-width: 40rem) {
  .verdict { padding: 1rem; gap: 0.75rem; }
  .tiles { grid-template-columns: repeat(3, 1fr); } .tiles div { padding: 0.55rem 0.7rem; }
  .tiles dd { font-size: 1.05rem; }
  thead { display: none; } table, tbody { display: block; }
  tbody tr { display: flex; flex-wrap: wrap; padding: 0.7rem 0; border-top: 1px solid var(--line); }
  tbody tr + tr > * { border-top: 0; }
  tbody th { flex: 1 0 100%; max-width: none; padding: 0 0 0.25rem; }
  tbody td, tbody td.text, tbody td.drawn, tbody td.figure {
    flex: 1 0 50%; width: auto; min-width: 0; max-width: 100%; padding: 0.15rem 0.75rem 0.15rem 0;
    text-align: left; white-space: normal; overflow-wrap: anywhere;
  }
  tbody td.figure { flex: 0 0 33%; } tbody td.drawn { flex-basis: 100%; padding-right: 0; }
  tbody td::before {
    content: attr(data-column); display: block; color: var(--soft); font-size: 0.8125rem; line-height: 1.3;
  }
  dl.words { grid-template-columns: 1fr; gap: 0.1rem; } dl.words dd { margin-bottom: 0.6rem; }
}
@media print {
  @page { margin: 14mm; }
  html { font-size: 10.5px; } main, header, footer { max-width: none; padding: 0; }
  nav { display: none; } section { margin-top: 2rem; } p, dl.words { font-size: 1.1rem; }
  .verdict, .tiles, figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; } .flows { min-width: 0; }
  th, td { padding-right: 0.7rem; } thead th { white-space: normal; } td.drawn { min-width: 10rem; }
}
"""
)
