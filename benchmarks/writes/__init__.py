"""The measurements of inserts, concurrent commits and merges (compactions), beside other table formats."""
