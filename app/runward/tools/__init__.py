"""What runs tools, behind the port of tools: local.py (functions) · bodies.py (from an agent to what the engine runs).

Beneath: results.py (what a function returned, as JSON that can be kept) · containment.py (author code cannot hurt the worker) ·
threads.py · asides.py (other functions of authors that may take their time).
"""
