"""The application, the kinds of arguments and the inputs that all verbs of the command `icedb` share.

May import `cli.render`. Begin with `application`.
"""
