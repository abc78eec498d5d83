"""The protocol as pure state machines: `handle(event, now) -> actions`."""
