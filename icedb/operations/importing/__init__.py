"""Import of existing Parquet files as parts of a table.

`list_files` lists them, `parquet_footer` and `inspect_files` read their footers, `import_plan` checks them together,
and `copy_files` copies them. May import `operations.rewrite`. Begin with `import_files`.
"""
