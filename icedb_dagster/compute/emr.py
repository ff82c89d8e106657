"""Places on AWS where Spark programs run: EMR with a cluster for each run, and EMR Serverless.

Nothing of this machine is sent there. The program, IceDB's wheel and the Python environment are files in S3, and
credentials come from the roles of the machines. `pip install 'icedb-dagster[aws]'` installs the Dagster Pipes clients.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import boto3
import botocore.session
import dagster as dg
from botocore.exceptions import BotoCoreError, ClientError
from botocore.validate import ParamValidator
from pydantic import Field

from icedb.errors import InvalidOption
from icedb_dagster.compute.spark_places import Context, SparkPlace, reject_secrets, spark_options

__all__ = ["EmrServerlessSpark", "EmrSpark"]

# The folder in a container into which Spark unpacks the environment.
UNPACKED = "environment"
PYTHON = f"./{UNPACKED}/bin/python"
# The lowest Spark that this library supports, and the labels of EMR's releases with an older one.
SPARK_MIN = "4.3"
_OLDER_RELEASES = {r"emr-[1-7]\.": "3.5 or older", r"emr-spark-8\.0\b": "4.0"}
# botocore polls every half minute and gives up after half an hour, which fails the run. A program may take a week.
POLLS_MAX = 7 * 24 * 60 * 2


class _AwsSpark(SparkPlace):
    """An AWS service that starts a program with one request."""

    service: ClassVar[str]
    operation: ClassVar[str]

    programs: str
    environment: str | None = None
    py_files: list[str] = Field(default=[])
    conf: dict[str, str] = Field(default={})
    region: str | None = None
    overrides: dict[str, Any] = Field(default={})

    @abstractmethod
    def _request(self, name: str, entry_point: str, arguments: list[str], options: list[str]) -> dict[str, Any]:
        """Return the service's parameters."""

    @abstractmethod
    def _environment_conf(self, archive: str) -> dict[str, str]:
        """Return the properties with which driver and executors unpack the environment and use its Python."""

    @abstractmethod
    def _start(self, request: Mapping[str, Any]) -> str:
        """Send the request, and return a text about the started program."""

    def request(self, program: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
        """Return the parameters of the call that starts a program, with `overrides` merged in.

        botocore's model of the service validates them, without network and credentials.

        Args:
            program: A program of `spark_jobs` by name, or its `s3://` address.
            arguments: The program's arguments.

        Raises:
            InvalidOption: A parameter is invalid, or an argument holds a secret.
        """
        place = type(self).__name__
        reject_secrets(place, arguments=arguments)
        packed = self._environment_conf(f"{self.environment}#{UNPACKED}") if self.environment else {}
        options = spark_options(place, {**packed, **self.conf}, self.py_files)
        entry_point = self._entry_point(program)
        name = entry_point.rpartition("/")[2].removesuffix(".py")
        request = _merged(self._request(name, entry_point, [*arguments], options), self.overrides)
        operation = botocore.session.get_session().get_service_model(self.service).operation_model(self.operation)
        # A request also has an idempotency token, which botocore adds when it sends the request.
        sent = {**dict.fromkeys(operation.idempotent_members, "token"), **request}
        report = ParamValidator().validate(sent, operation.input_shape)  # type: ignore[arg-type]
        if report.has_errors():
            problems = "; ".join(report.generate_report().splitlines())
            raise InvalidOption(
                f"{place}: {self.operation} would reject the request: {problems}. Correct the field, or overrides."
            )
        return request

    def preview(self, program: str, arguments: Sequence[str] = ()) -> str:
        """Return the request as JSON."""
        return json.dumps(self.request(program, arguments), indent=2)

    def submit(self, program: str, arguments: Sequence[str] = ()) -> str:
        """Start a program without waiting for it, and return a text about it.

        Raises:
            InvalidOption: A parameter is invalid, or AWS rejects the request.
        """
        request = self.request(program, arguments)
        try:
            return self._start(request)
        except (BotoCoreError, ClientError) as error:
            raise InvalidOption(
                f"{type(self).__name__}: {self.operation} failed: {error} Check region, roles and credentials."
            ) from None

    def _entry_point(self, program: str) -> str:
        if program.startswith("s3://"):
            return program
        if "/" in program or program.endswith(".py"):
            raise InvalidOption(
                f"{type(self).__name__}: {program!r} is on this machine, but AWS reads programs from S3. Copy it there "
                "and give its s3:// address."
            )
        if not self.programs.startswith("s3://"):
            raise InvalidOption(
                f"{type(self).__name__}: programs is {self.programs!r}; give the s3:// address of the folder with "
                "the files of spark_jobs."
            )
        return f"{self.programs.rstrip('/')}/{program}.py"


class EmrSpark(_AwsSpark):
    """An EMR cluster that is started for the program, and ends with it.

    Args:
        programs: The folder in S3 with the files of `spark_jobs`.
        environment: A packed virtual environment in S3.
        py_files: Archives of Python modules in S3.
        conf: Spark properties.
        region: The AWS region; None: the usual AWS chain decides.
        overrides: Parameters of RunJobFlow that are merged over the others.
        release_label: A release with Spark 4.3 or later.
        messages_bucket: The bucket for the program's messages to Dagster. The program's role needs write access.
        instance_type: As EMR defines it, like the other parameters up to `log_uri`.
        instance_count: As EMR defines it.
        service_role: As EMR defines it.
        instance_role: As EMR defines it.
        subnet_id: As EMR defines it.
        log_uri: As EMR defines it.

    Example:
        EmrSpark(programs="s3://code/jobs", release_label=os.environ["EMR_RELEASE"],
        messages_bucket="pipes", instance_type="m6g.xlarge")
    """

    service: ClassVar[str] = "emr"
    operation: ClassVar[str] = "RunJobFlow"

    release_label: str
    messages_bucket: str
    instance_type: str
    instance_count: int = 3
    service_role: str = "EMR_DefaultRole"
    instance_role: str = "EMR_EC2_DefaultRole"
    subnet_id: str | None = None
    log_uri: str | None = None

    def run(
        self, context: Context, program: str, arguments: Sequence[str] = (), *, extras: Mapping[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Run a program on its own cluster, through `dagster_aws.pipes.PipesEMRClient`.

        Raises:
            InvalidOption: A parameter is invalid. botocore's errors are raised, too: its WaiterError if the program
                failed.
        """
        pipes = _dagster_aws_pipes()
        request = self.request(program, arguments)
        reader = pipes.PipesS3MessageReader(
            bucket=self.messages_bucket,
            client=boto3.client("s3", region_name=self.region),
            include_stdio_in_messages=True,
        )
        client = pipes.PipesEMRClient(client=self.client(), message_reader=reader)
        done: dg.PipesClientCompletedInvocation = client.run(
            context=context, run_job_flow_params=request, extras=dict(extras or {})
        )
        return done

    def request(self, program: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
        """Return the parameters of RunJobFlow. Raises InvalidOption, also for a release with an older Spark."""
        request = super().request(program, arguments)
        _check_release(request["ReleaseLabel"])
        if any(c.get("Classification") == "spark-defaults" for c in request.get("Configurations", ())):
            # dagster-aws writes its variables there, and loses them if others exist already.
            raise InvalidOption("EmrSpark: overrides has Configurations for spark-defaults. Give them as conf.")
        return request

    def client(self) -> Any:
        """Return an EMR client that waits up to a week for a cluster."""
        return _PatientClient(boto3.client("emr", region_name=self.region))

    def _start(self, request: Mapping[str, Any]) -> str:
        return f"EMR started the cluster {self.client().run_job_flow(**request)['JobFlowId']}"

    def _environment_conf(self, archive: str) -> dict[str, str]:
        return {
            "spark.yarn.dist.archives": archive,
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": PYTHON,
            "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
        }

    def _request(self, name: str, entry_point: str, arguments: list[str], options: list[str]) -> dict[str, Any]:
        instances = {
            "MasterInstanceType": self.instance_type,
            "SlaveInstanceType": self.instance_type,
            "InstanceCount": self.instance_count,
            "KeepJobFlowAliveWhenNoSteps": False,
        }
        step = {
            "Name": name,
            "ActionOnFailure": "TERMINATE_CLUSTER",  # else the cluster ends as if it had succeeded
            "HadoopJarStep": {
                "Jar": "command-runner.jar",
                "Args": ["spark-submit", "--deploy-mode", "cluster", *options, entry_point, *arguments],
            },
        }
        return {
            "Name": name,
            "ReleaseLabel": self.release_label,
            "Applications": [{"Name": "Spark"}],
            **({"LogUri": self.log_uri} if self.log_uri else {}),
            "ServiceRole": self.service_role,
            "JobFlowRole": self.instance_role,
            "Instances": {**instances, **({"Ec2SubnetId": self.subnet_id} if self.subnet_id else {})},
            "Steps": [step],
        }


class EmrServerlessSpark(_AwsSpark):
    """An existing EMR Serverless application.

    The program's messages to Dagster are lines of its output, which the request sends to CloudWatch.

    Args:
        programs: As for `EmrSpark`, like `environment`, `py_files`, `conf` and `region`.
        environment: As for `EmrSpark`.
        py_files: As for `EmrSpark`.
        conf: As for `EmrSpark`.
        region: As for `EmrSpark`.
        overrides: Parameters of StartJobRun that are merged over the others.
        application_id: The application.
        execution_role_arn: The program's role.

    Example:
        EmrServerlessSpark(programs="s3://code/jobs", application_id="00f1",
        execution_role_arn="arn:aws:iam::1:role/spark")
    """

    service: ClassVar[str] = "emr-serverless"
    operation: ClassVar[str] = "StartJobRun"

    application_id: str
    execution_role_arn: str

    def run(
        self, context: Context, program: str, arguments: Sequence[str] = (), *, extras: Mapping[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Run a program in the application, through `dagster_aws.pipes.PipesEMRServerlessClient`.

        Raises:
            InvalidOption: A parameter is invalid. botocore's errors are raised, too.
            RuntimeError: The program failed.
        """
        pipes = _dagster_aws_pipes()
        request = self.request(program, arguments)
        reader = pipes.PipesCloudWatchMessageReader(client=boto3.client("logs", region_name=self.region))
        client = pipes.PipesEMRServerlessClient(client=self.client(), message_reader=reader)
        done: dg.PipesClientCompletedInvocation = client.run(
            context=context, start_job_run_params=request, extras=dict(extras or {})
        )
        return done

    def client(self) -> Any:
        """Return an EMR Serverless client."""
        return boto3.client("emr-serverless", region_name=self.region)

    def _start(self, request: Mapping[str, Any]) -> str:
        return f"EMR Serverless started the job run {self.client().start_job_run(**request)['jobRunId']}"

    def _environment_conf(self, archive: str) -> dict[str, str]:
        return {
            "spark.archives": archive,
            "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": PYTHON,
            "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": PYTHON,
            "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
        }

    def _request(self, name: str, entry_point: str, arguments: list[str], options: list[str]) -> dict[str, Any]:
        for option in options:
            if any(c.isspace() or c in "'\"\\" for c in option):  # EMR Serverless takes one text, without quoting rules
                raise InvalidOption(f"EmrServerlessSpark: {option!r} has a space, a quote or a backslash; remove it.")
        spark_submit = {"entryPoint": entry_point, "entryPointArguments": arguments}
        return {
            "name": name,
            "applicationId": self.application_id,
            "executionRoleArn": self.execution_role_arn,
            "jobDriver": {
                "sparkSubmit": {**spark_submit, **({"sparkSubmitParameters": " ".join(options)} if options else {})}
            },
            "configurationOverrides": {
                "monitoringConfiguration": {"cloudWatchLoggingConfiguration": {"enabled": True}}
            },
        }


def _check_release(label: str) -> None:
    """Reject a release whose Spark is known to be too old. Raises InvalidOption."""
    for pattern, spark in _OLDER_RELEASES.items():
        if re.match(pattern, label):
            raise InvalidOption(
                f"EmrSpark: release_label is '{label}', a release with Spark {spark}, and IceDB requires Spark "
                f"{SPARK_MIN}. Name a release with it. This command lists the Spark of a release: aws emr "
                "describe-release-label --release-label LABEL."
            )


class _PatientClient:
    """A boto3 client whose waiters do not give up before the program ends."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_waiter(self, name: str) -> Any:
        """Return boto3's waiter, with a longer limit."""
        waiter = self._client.get_waiter(name)
        waiter.config.max_attempts = POLLS_MAX
        return waiter


def _dagster_aws_pipes() -> Any:
    """Import dagster-aws, which only programs on AWS need."""
    try:
        from dagster_aws import pipes
    except ImportError:
        raise InvalidOption(
            "EMR needs dagster-aws, which is not installed. Run: pip install 'icedb-dagster[aws]'"
        ) from None
    return pipes


def _merged(ours: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings at every level. For other values, `overrides` win."""
    merged = dict(ours)
    for name, value in overrides.items():
        ours_value = merged.get(name)
        merged[name] = (
            _merged(ours_value, value) if isinstance(ours_value, Mapping) and isinstance(value, Mapping) else value
        )
    return merged
