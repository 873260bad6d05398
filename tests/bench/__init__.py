"""How fast, against the least code that does the same job (`make bench`; never a timed test). docs/performance.md says what is measured.

| module | what it holds |
| --- | --- |
| `__main__` | the command: which parts are run, what is printed and kept |
| `report` | the targets, rows that are held against them, tables, the JSON file |
| `machine` | the weather of the machine, and what it is |
| `servers` | the processes that are measured, with their CPU and memory |
| `load` | the client: closed loops that read each run's stream to its end |
| `floor`, `floor_stores` | the partner: the least code that does the job durably |
| `agents` | the agents of the workloads, as authors write them |
| `pairs`, `counting`, `footprint`, `streams`, `flight`, `history` | the parts: each measures and returns rows |
"""
