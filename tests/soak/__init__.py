"""`make soak`: two hundred mixed runs while processes are killed and stopped, databases restart and connections freeze; then everything is
healed, and the store and the outside world are compared.
"""
