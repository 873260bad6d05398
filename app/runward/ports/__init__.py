"""What the engine needs from the outside, as protocols. Each contract stands in its docstring; one contract suite runs on every adapter."""
