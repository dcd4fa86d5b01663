"""`ajet episodes`: what a ledger holds, for people.

`group` holds the commands; `listing` and `conversation` compute what `ls` and `show` print, as the object of the
`--json` line and as text. `resolution` does the same for `resolve`, which talks to servers.
"""
