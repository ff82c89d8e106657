"""The verbs of the command `icedb`: methods of `Table`, and servers. May import `cli.base` and `cli.render`."""
