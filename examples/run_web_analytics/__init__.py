"""`make example`: the web analytics from generated events to the dashboard, with every number checked."""
