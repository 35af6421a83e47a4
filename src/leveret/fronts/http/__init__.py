"""The HTTP API of the broker: `app.create_app` makes the application; `leveret.server` serves it."""
