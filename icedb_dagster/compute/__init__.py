"""Where Spark programs run: this machine, a standalone cluster, Spark Connect, AWS. Begin with `spark_places`."""
