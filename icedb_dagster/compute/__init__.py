"""Where Spark programs run: this machine, a standalone cluster, Spark Connect, EMR. Begin with `spark_places`."""
