"""How the documentation site is made of the pages: what MkDocs cannot know by itself."""
