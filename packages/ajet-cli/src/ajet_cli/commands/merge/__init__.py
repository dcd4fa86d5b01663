"""`ajet merge`: what merging captured calls saves, where they part, and the rows and packs they become.

`group` holds the commands; `source` reads the file; each of the other modules computes what one command prints, as the
object of its `--json` line and as text.
"""
