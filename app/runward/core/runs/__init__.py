"""The run: its state, the facts that change it, the decision what comes next. The only place the state machine lives."""
