"""H1 and H3: worlds in which processes die, freeze, and lose answers at any operation, and every promise is watched.

    loop.py        virtual time; steps of a killed process never happen, steps of a frozen one wait
    database.py    the memory store's operations, each with a fate: done, refused, lost, late, or the end of its process
    processes.py   a simulated process: a whole service with its worker, its clock and its bus
    world.py       one database, its processes, hints between them, and the end: heal, settle, judge
    tools.py       a tool of every kind, its probe and its projection · agents.py  the agent, in two versions, and its model: `Manners` say
                   what all of them do · ledger.py  what really happened, and what people really said
    callers.py     callers that create, follow, read, cancel and delete · people.py  whoever approves, answers, settles and tries again ·
                   operators.py  whoever parks runs, seizes them, binds them anew; all of them hold the service to its answers
    typed.py       typed answers and their verifier, and the watch over them and over models that take over
    watch.py       the invariants, at every write, at every start, and at every run's end · calls.py  those of calls and receipts ·
                   inputs.py  those of mail and approvals · story.py  the journal, folded
    scenario.py    H1: who calls and what goes wrong, drawn from a seed · stories.py, golden.py  H3: short stories, struck at chosen writes

`python -m tests.simulation 17 --notes` lives through seed 17 again. To bring something new into the worlds: a tool in `tools.py` or a
manner in `agents.py`, what callers, people or operators do with it (an answer they may hold the service to goes to the watch), its promise
in the watch, and a golden story of it in `stories.py`.
"""
