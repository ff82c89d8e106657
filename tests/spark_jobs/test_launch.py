"""One program in each kind of place, started by Dagster and by hand. For AWS, only its requests."""

import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("dagster")

import dagster as dg

import icedb
from icedb.errors import InvalidOption
from icedb_dagster import ConnectSpark, EmrServerlessSpark, EmrSpark, LocalSpark, SparkPlace, StandaloneSpark
from icedb_dagster.compute.emr import SPARK_MIN
from icedb_dagster.dev.command import main
from tests.support.site.pages import ROOT
from tests.support.spark.spark_clusters import SESSION, TWO_EXECUTORS, connect_server, environment, standalone

PROGRAM = str(Path(__file__).parents[1] / "support" / "spark" / "pipes_program.py")
SECRET = "correct horse battery staple"
ENV = {"PASSWORD": SECRET}


#: A server that does not exist, for programs that end before they need it.
NOWHERE = ConnectSpark(remote="sc://127.0.0.1:1/;user_id=tests", env=ENV)


@pytest.fixture(scope="module")
def place_named(spark_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], SparkPlace]]:
    """Return a function that starts a place at its first use."""
    folder = tmp_path_factory.mktemp("places")
    archive = folder / "shipped.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("only_on_executors.py", "WORD = __file__.rpartition('/')[0].rpartition('/')[2]")
    conf = {**SESSION, "spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    env = environment(spark_home)
    own = {**ENV, "SPARK_HOME": str(spark_home)}
    with ExitStack() as stack:

        @cache
        def start(name: str) -> SparkPlace:
            if name == "local":
                return LocalSpark(master="local[2]", conf=conf, env=own)
            if name == "standalone":
                master = stack.enter_context(standalone(folder, env))
                memory = {**conf, **TWO_EXECUTORS, "spark.executor.memory": "512m"}
                return StandaloneSpark(master=master, py_files=[str(archive)], conf=memory, env=own)
            remote = stack.enter_context(connect_server(folder, env))
            return ConnectSpark(remote=f"{remote}/;user_id=tests", env=ENV)

        yield start


@pytest.fixture
def table(tmp_path: Path) -> icedb.Table:
    return icedb.Table.create(tmp_path / "numbers", partition_by=["half"], sort_by=["n"])


def materialize(place: SparkPlace, *words: str) -> dg.ExecuteInProcessResult:
    @dg.asset
    def numbers(context: dg.AssetExecutionContext, spark: SparkPlace) -> dg.MaterializeResult:  # type: ignore[type-arg]
        """Run the program as a project does, independent of the place."""
        return spark.run(context, PROGRAM, words, extras={"asked": "nicely"}).get_materialize_result()

    return dg.materialize([numbers], resources={"spark": place}, raise_on_error=False)


@pytest.mark.sampled(days=3)
@pytest.mark.spark
@pytest.mark.parametrize(
    "name", ["local", *(pytest.param(n, marks=pytest.mark.slow(seconds=40)) for n in ("standalone", "connect"))]
)
def test_a_program_writes_a_table_and_reports_to_dagster(
    place_named: Callable[[str], SparkPlace], table: icedb.Table, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--table", table.uri, *(["--module", "only_on_executors"] if name == "standalone" else [])]
    done = materialize(place_named(name), *words)
    out, err = capfd.readouterr()
    assert done.success, out + err
    assert "wrote 100 rows" in out + err
    [event] = done.asset_materializations_for_node("numbers")
    metadata = {key: value.value for key, value in event.metadata.items()}
    snapshot = table.snapshot()
    assert event.tags is not None
    assert event.tags["dagster/data_version"] == snapshot.id
    assert (metadata["rows"], snapshot.rows, len(snapshot.partitions())) == (100, 100, 2)
    assert metadata["connect"] == (name == "connect")
    assert str(metadata["master"]).startswith("spark://" if name == "standalone" else "local[2]")
    assert metadata["shipped"] == ("shipped.zip shipped.zip" if name == "standalone" else "")
    assert (metadata["asked"], metadata["password"]) == ("nicely", len(SECRET))


@pytest.mark.process
def test_a_failed_program_fails_the_step_with_its_error_line(table: icedb.Table) -> None:
    done = materialize(NOWHERE, "--table", table.uri, "--fail", "no such weather")
    [failure] = [e for e in done.all_events if e.is_step_failure]
    assert failure.step_failure_data.error is not None
    assert "Failure: ValueError: no such weather\n" in failure.step_failure_data.error.message
    assert table.snapshot().rows == 0


def command_line(place: ConnectSpark, folder: Path) -> list[str]:
    """Return the arguments of `icedb-dagster` that start the program in a place."""
    config = folder / "connect.yaml"
    config.write_text(json.dumps({"remote": place.remote, "env": ENV}))
    return ["submit", PROGRAM, "--on", "connect", "--config", str(config)]


@pytest.mark.spark
@pytest.mark.slow(seconds=30)
def test_a_program_can_be_submitted(
    place_named: Callable[[str], SparkPlace], table: icedb.Table, tmp_path: Path
) -> None:
    place = place_named("connect")
    assert isinstance(place, ConnectSpark)
    command = [sys.executable, "-m", "icedb_dagster.dev.command", *command_line(place, tmp_path)]
    assert subprocess.run([*command, "--", "--table", table.uri]).returncode == 0
    assert table.snapshot().rows == 100


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_program_gets_its_arguments_and_its_preview_has_no_secrets(
    table: icedb.Table, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = command_line(NOWHERE, tmp_path)
    ended(0, *command, "--dry-run", "--", "--table", table.uri)
    assert capfd.readouterr().out.startswith('PASSWORD="$PASSWORD" SPARK_REMOTE="$SPARK_REMOTE" ')
    cli = [sys.executable, "-m", "icedb_dagster.dev.command", *command]
    assert subprocess.run([*cli, "--", "--tabel", table.uri]).returncode == 2
    assert "pipes_program.py: error: " in capfd.readouterr().err

    cluster = StandaloneSpark(master="spark://127.0.0.1:7077", env=ENV)
    preview = cluster.preview(PROGRAM, ["--table", "a b"]) + repr([NOWHERE, cluster]) + repr(NOWHERE.launch(PROGRAM))
    assert SECRET not in preview
    assert "user_id" not in preview
    assert re.search(r"spark-submit'? --master spark://127\.0\.0\.1:", preview)
    assert preview.partition("[")[0].endswith(f"{shlex.quote(PROGRAM)} --table 'a b'")


def ended(status: int, *arguments: str) -> None:
    """Run the command `icedb-dagster`."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == status


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nothing"], "error: 'nothing' is not a program of spark_jobs (*ingest_flights*). Give one, or a file's*"),
        (["nothing.py"], "error: The program '*/nothing.py' does not exist. Give the path of a Python file*"),
        ([PROGRAM, "--set", "master=yarn"], "error: LocalSpark: master is 'yarn'; give local[[]*], or*"),
        ([PROGRAM], "error: SPARK_REMOTE is set, so */pipes_program.py would not run on local[[]*]. Unset it, or*"),
        ([PROGRAM, "--set", "colour=red"], "error: local: unknown field 'colour'. The fields are *master*"),
        ([PROGRAM, "--set", "colour"], "error: local: the setting 'colour' has no value; write colour=VALUE."),
        ([PROGRAM, "--set", "conf.spark.my.password=hush"], "error: LocalSpark: spark.my.password would be on*"),
        ([PROGRAM, "--set", "env.PASSWORD=hush"], "error: local: the setting env would be on a command line*"),
        ([PROGRAM, "--", "--storage-option=AWS_SESSION_TOKEN=hush"], "error: *: AWS_SESSION_TOKEN would be on*"),
        (
            [PROGRAM, "--", "--storage-option=AZURE_STORAGE_ACCOUNT_KEY=hush"],
            "error: *: AZURE_STORAGE_ACCOUNT_KEY would*",
        ),
        ([PROGRAM, "--on", "connect"], "error: ConnectSpark: remote: *. Give the field in the file, or with --set."),
        ([PROGRAM, "--on", "connect", "--set", "remote=h:1"], "error: ConnectSpark: remote is 'h:1'; give sc://*"),
        (
            [PROGRAM, "--on", "standalone", "--set", "master=spark://h:1", "--set", "py_files=[icedb.whl]"],
            "error: StandaloneSpark: py_files has 'icedb.whl', but*A wheel is a zip archive. Copy it to a name*",
        ),
    ],
)
def test_invalid_arguments_are_one_line_before_a_start(
    words: list[str], line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "SPARK_REMOTE" in line:
        monkeypatch.setenv("SPARK_REMOTE", "sc://h:1/;token=hush")
    ended(1, "submit", *words)
    out, err = capfd.readouterr()
    assert fnmatch.fnmatchcase(err, f"{line}\n"), err
    assert (out, err.count("\n"), "hush" in err) == ("", 1, False)


def test_an_unreadable_file_is_reported_without_its_content(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, text, line in [
        ("a.yaml", "env:\n  PASSWORD: 'hush", f"error: {tmp_path}/a.yaml, line 2: *Write YAML, or TOML*"),
        ("a.toml", "PASSWORD: hush", f"error: {tmp_path}/a.toml cannot be read: *at line 1*"),
        ("b.yaml", "hush", f"error: {tmp_path}/b.yaml must contain the fields of a place as name: value."),
        ("c.yaml", "env: {PASSWORD: [hush]}", "error: LocalSpark: env.PASSWORD: *. Give the field in the file*"),
    ]:
        (tmp_path / name).write_text(text)
        ended(1, "submit", PROGRAM, "--config", str(tmp_path / name))
        err = capfd.readouterr().err
        assert fnmatch.fnmatchcase(err, f"{line}\n"), err
        assert "hush" not in err


EMR = """
programs = "s3://artifacts/spark_jobs"
environment = "s3://artifacts/environment.tar.gz"
py_files = ["s3://artifacts/icedb.zip"]
messages_bucket = "artifacts"
release_label = "emr-of-spark-4"
instance_type = "m6i.xlarge"
region = "eu-central-1"
conf = {"spark.executor.memory" = "8g"}
overrides = {Instances = {Ec2SubnetId = "subnet-1"}, StepConcurrencyLevel = 1}
"""


def test_emr_previews_a_valid_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "emr.toml"
    config.write_text(EMR)
    command = ["submit", "ingest_flights", "--on", "emr", "--config", str(config), "--dry-run"]
    ended(0, *command, "--", "--table", "s3://lake/flights")
    request = json.loads(capfd.readouterr().out)
    assert request["Instances"] == {
        "MasterInstanceType": "m6i.xlarge",
        "SlaveInstanceType": "m6i.xlarge",
        "InstanceCount": 3,
        "KeepJobFlowAliveWhenNoSteps": False,
        "Ec2SubnetId": "subnet-1",
    }
    assert (request["ReleaseLabel"], request["StepConcurrencyLevel"]) == ("emr-of-spark-4", 1)
    [step] = request["Steps"]
    assert step["ActionOnFailure"] == "TERMINATE_CLUSTER"
    words = step["HadoopJarStep"]["Args"]
    assert words[:5] == ["spark-submit", "--deploy-mode", "cluster", "--py-files", "s3://artifacts/icedb.zip"]
    assert words[-3:] == ["s3://artifacts/spark_jobs/ingest_flights.py", "--table", "s3://lake/flights"]
    python = "./environment/bin/python"
    assert words[5:-3] == [
        *("--conf", "spark.yarn.dist.archives=s3://artifacts/environment.tar.gz#environment"),
        *("--conf", f"spark.yarn.appMasterEnv.PYSPARK_PYTHON={python}"),
        *("--conf", f"spark.executorEnv.PYSPARK_PYTHON={python}"),
        *("--conf", "spark.executor.memory=8g"),
    ]

    ended(1, *command, "--set", "overrides={Instances: {InstanceCount: three}, Colour: red}")
    err = capfd.readouterr().err
    assert err.startswith("error: EmrSpark: RunJobFlow would reject the request: ")
    assert 'Unknown parameter in input: "Colour"' in err
    assert "Invalid type for parameter Instances.InstanceCount, value: three" in err
    assert err.endswith(" Correct the field, or overrides.\n")
    assert err.count("\n") == 1

    place = EmrSpark(
        programs="s3://a", messages_bucket="a", release_label="r", instance_type="t", region="eu-central-1"
    )
    waiter = place.client().get_waiter("cluster_terminated").config
    assert waiter.delay * waiter.max_attempts == 7 * 24 * 60 * 60


@pytest.mark.parametrize("label", ["emr-5.36.2", "emr-7.12.0", "emr-spark-8.0.0", "emr-spark-8.0-preview"])
def test_a_release_of_emr_with_an_older_spark_is_rejected(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], label: str
) -> None:
    (tmp_path / "emr.toml").write_text(EMR.replace("emr-of-spark-4", label))
    ended(1, "submit", "ingest_flights", "--on", "emr", "--config", str(tmp_path / "emr.toml"), "--dry-run")
    err = capfd.readouterr().err
    assert err.startswith(f"error: EmrSpark: release_label is '{label}', a release with Spark ")
    assert f"IceDB requires Spark {SPARK_MIN}. Name a release with it. " in err
    assert err.count("\n") == 1


def test_the_lowest_spark_is_that_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(requirement.startswith(f"pyspark[connect]>={SPARK_MIN},") for requirement in extras["spark"])


@pytest.mark.long
def test_emr_serverless_previews_a_valid_request(capfd: pytest.CaptureFixture[str]) -> None:
    fields = {
        "programs": "s3://artifacts/spark_jobs/",
        "application_id": "00abcdefghijkl",
        "execution_role_arn": "arn:aws:iam::123456789012:role/spark",
        "environment": "s3://artifacts/environment.tar.gz",
    }
    settings = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    command = ["submit", "ingest_flights", "--on", "emr-serverless", "--dry-run", *settings]
    ended(0, *command, "--", "--table", "s3://lake/flights")
    python = "./environment/bin/python"
    assert json.loads(capfd.readouterr().out) == {
        "name": "ingest_flights",
        "applicationId": "00abcdefghijkl",
        "executionRoleArn": "arn:aws:iam::123456789012:role/spark",
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": "s3://artifacts/spark_jobs/ingest_flights.py",
                "entryPointArguments": ["--table", "s3://lake/flights"],
                "sparkSubmitParameters": (
                    "--conf spark.archives=s3://artifacts/environment.tar.gz#environment "
                    f"--conf spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON={python} "
                    f"--conf spark.emr-serverless.driverEnv.PYSPARK_PYTHON={python} "
                    f"--conf spark.executorEnv.PYSPARK_PYTHON={python}"
                ),
            }
        },
        "configurationOverrides": {"monitoringConfiguration": {"cloudWatchLoggingConfiguration": {"enabled": True}}},
    }

    ended(1, *command, "--set", "execution_role_arn=spark")
    err = capfd.readouterr().err
    assert err == (
        "error: EmrServerlessSpark: StartJobRun would reject the request: Invalid length for parameter "
        "executionRoleArn, value: 5, valid min length: 20. Correct the field, or overrides.\n"
    )
    place = EmrServerlessSpark(**fields, conf={"spark.app.name": "my flights"})
    with pytest.raises(InvalidOption, match="my flights' has a space"):
        place.request("ingest_flights")
    with pytest.raises(InvalidOption, match="reads programs from S3"):
        place.request("programs/mine.py")
