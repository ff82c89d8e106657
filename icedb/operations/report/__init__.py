"""The report of a table: one self-contained HTML page with its health, partitions, commits, snapshots and schema.

`table_facts` reads a table, `document` turns these facts into the texts and charts of the page, `page` renders it. May
import `operations.health`. Begin with `document`.
"""
