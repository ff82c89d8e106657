"""`make example`: the web analytics from generated events to the dashboard, every number checked."""
