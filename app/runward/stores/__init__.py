"""Adapters of the store and the bus: `memory` for tests and the simulator, and the ones for real databases."""
