"""What the packages of requirements.lock are licensed under, and what is known against them: `make audit`."""
