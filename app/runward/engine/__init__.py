"""The imperative shell: claims runs, drives them, answers callers. Knows the ports only, never an adapter."""
