"""`ajet episodes`: what a ledger holds, for people.

`group` holds the commands; `listing`, `conversation` and `passk` compute what `ls`, `show` and `passk` print, as the
object of the `--json` line and as text. `resolution` does the same for `resolve`, which talks to servers.
"""
