"""The application that all verbs of the command `icedb` share, its arguments, and its inputs.

May import `cli.render`. Begin with `application`.
"""
