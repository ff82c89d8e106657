"""The verbs of the command `icedb`, each a method of `Table`. May import `cli.base` and `cli.render`."""
