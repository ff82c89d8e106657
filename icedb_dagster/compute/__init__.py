"""Places for Spark programs: this machine, a standalone cluster, Spark Connect, AWS. Begin with `spark_places`."""
