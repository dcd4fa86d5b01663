"""The `ajet` command.

main          the click group; commands are imported when they are used
output        people read text, programs read `--json`
jobfile       a job from YAML, environment and key=value overrides
spawn         starts a server as a process of its own and waits until it serves
commands/     one file a command group
quickstart/   `ajet quickstart`: server, agent, live view, report
"""

__version__ = "0.1.0"
