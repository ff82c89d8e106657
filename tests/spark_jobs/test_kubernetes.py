"""The command for Kubernetes on the page about clusters, parsed by Spark's own classes. Nothing is submitted."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from tests.support.site.pages import ROOT, blocks

pytestmark = pytest.mark.spark


def command() -> list[str]:
    """Return the words after `spark-submit` of the only command for Kubernetes."""
    [text] = [block for block in blocks(ROOT / "docs" / "clusters.md", "sh") if "k8s://" in block]
    return shlex.split(text.replace("\\\n", " "))[1:]


@pytest.mark.sampled(days=3)
def test_spark_accepts_the_command_for_kubernetes(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    convert = jvm.org.apache.spark.api.python.PythonUtils
    arguments = jvm.org.apache.spark.deploy.SparkSubmitArguments(convert.toSeq(command()), convert.toScalaMap({}))
    none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    prepared = jvm.org.apache.spark.deploy.SparkSubmit().prepareSubmitEnvironment(arguments, none)
    assert prepared._4() == "org.apache.spark.deploy.k8s.submit.KubernetesClientApplication"
    assert "local:///opt/lake/lib/python3.12/site-packages/spark_jobs/merge_table.py" in prepared._1().toString()
    assert "--arg, --table, --arg, s3://lake/events" in prepared._1().toString()


@pytest.mark.sampled(days=3)
def test_spark_has_each_property_of_the_command(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    kubernetes = getattr(getattr(jvm.org.apache.spark.deploy.k8s, "Config$"), "MODULE$")
    prefixes = (
        kubernetes.KUBERNETES_DRIVER_SECRET_KEY_REF_PREFIX(),
        kubernetes.KUBERNETES_EXECUTOR_SECRET_KEY_REF_PREFIX(),
    )
    words = command()
    names = [words[n + 1].partition("=")[0] for n, word in enumerate(words) if word == "--conf"]
    assert len(names) == 12
    find = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry
    assert [name for name in names if find(name) is None and not name.startswith(prefixes)] == []
    assert find("spark.kubernetes.name") is None
