"""The broker over HTTP. `app.create_app` makes the application; who listens for it is the server's affair."""
