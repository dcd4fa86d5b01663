"""`ajet quickstart`: a real model learns a two-turn tool task on this machine, and you watch.

agents     the calculator agent and its reward; the digit agent for the micro model
client     a process of its own: runs the agent against the server, round after round
setup      the model, the job, the folders, the two processes
live       what is shown while it runs
report     what is shown and saved at the end
"""
