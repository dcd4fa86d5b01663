"""The style of the HTML report."""

STYLE = """
:root { color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --ink: #1d2126; --soft: #5c6570; --line: #d9dde2; --same: #eef0f2;
  --gone: #ffe1dc; --gone-line: #c4432b; --new: #d9f2df; --new-line: #22793a; --bar: #7d93ad; --more: #c3cbd5;
  --mark: #c4432b; --free: #8a929c; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171a; --card: #1c2024; --ink: #e6e9ec; --soft: #9aa4ae; --line: #343a41; --same: #2a2f35;
  --gone: #4a221c; --gone-line: #f08a76; --new: #1b3d26; --new-line: #6fcf8a; --bar: #6f87a3; --more: #444c56;
  --mark: #f08a76; --free: #8a929c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); } .number { text-align: right; font-variant-numeric: tabular-nums; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem; margin: 1rem 0 0; padding: 0; list-style: none; }
.facts li { flex: 1 1 9rem; padding: .6rem .8rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--card); color: var(--soft); font-size: .85rem; }
.facts b { display: block; color: var(--ink); font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; background: var(--card); }
table { border-collapse: collapse; width: 100%; } th { color: var(--soft); font-weight: 500; text-align: left; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; } th.number { text-align: right; }
.share { display: block; height: 4px; margin-top: 4px; border-radius: 2px; background: var(--mark); }
svg { display: block; min-width: 720px; width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--soft); } .bar { fill: var(--bar); } .more { fill: var(--more); }
.link, .tick { stroke: var(--line); fill: none; } .end { stroke: var(--ink); stroke-width: 2; }
.mark { fill: var(--mark); } .free { fill: var(--card); stroke: var(--free); stroke-width: 1.5; }
details { margin: .5rem 0; border: 1px solid var(--line); border-radius: 6px; background: var(--card); }
summary { padding: .55rem .8rem; cursor: pointer; overflow-wrap: anywhere; }
summary b { margin-right: .4rem; } .cost { float: right; margin-left: .8rem; font-variant-numeric: tabular-nums; }
.body { padding: 0 .8rem .8rem; } h3 { margin: .7rem 0 .25rem; font-size: .8rem; font-weight: 500; color: var(--soft); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 .8rem; }
.pair > div { border-left: 3px solid var(--gone-line); padding-left: .6rem; min-width: 0; }
.pair > div + div { border-color: var(--new-line); }
.tokens { display: flex; flex-wrap: wrap; gap: 3px; }
.tokens span { display: inline-flex; flex-direction: column; max-width: 100%; padding: 1px 5px; border-radius: 4px;
  background: var(--same); font: 13px/1.35 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.tokens b { font-weight: 400; } .tokens i { color: var(--soft); font-size: 10px; font-style: normal; }
.tokens .rest { background: none; color: var(--soft); font: inherit; font-size: .85rem; align-self: center; }
.gone span { background: var(--gone); } .new span { background: var(--new); }
.gone span.rest, .new span.rest { background: none; }
u { text-decoration: none; opacity: .55; }
@media (max-width: 40rem) { body { font-size: 14px; padding: 1rem .6rem 3rem; }
  .pair { grid-template-columns: 1fr; } table, tbody, thead { display: block; }
  tr { display: grid; grid-template-columns: 1fr 6rem 7rem; border-bottom: 1px solid var(--line); }
  th, td { padding: .2rem .6rem; border: 0; } th:last-child { display: none; } td:last-child { grid-column: 1 / -1; }
  .cost { float: none; margin: 0 .4rem 0 0; } }
"""
