"""H1 and H3: worlds in which processes die, freeze, and lose answers at any operation, and every promise is watched.

    loop.py        virtual time; steps of a killed process never happen, steps of a frozen one wait
    database.py    the memory store's operations, each with a fate: done, refused, lost, late, or the end of its process
    processes.py   a simulated process: a whole service with its worker, its clock and its bus
    world.py       one database, its processes, hints between them, and the end: heal, settle, judge
    agents.py      the agent of all runs, its tools and model: `Manners` say what they do; a ledger notes what really happened
    callers.py     callers that create, follow, read, cancel, drain and delete, and hold the service to its answers
    watch.py       the invariants, at every write, every start of a tool or model, and every run's end; story.py folds the journal
    scenario.py    H1: who calls and what goes wrong, drawn from a seed · golden.py   H3: one story, struck at chosen writes

`python -m tests.simulation 17 --notes` lives through seed 17 again. To bring something new into the worlds: a tool or a manner in
`agents.py`, what callers do with it in `callers.py` (an answer they may hold the service to goes to the watch), its promise in `watch.py`,
and a golden story of it in `golden.py`.
"""
