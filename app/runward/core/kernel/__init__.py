"""What every durable actor obeys, whatever its kind: envelope, lease, mail, journal, commit."""
