"""Where Spark programs run on AWS: EMR, a cluster for each run, and EMR Serverless.

Nothing of this machine goes there: the program, our wheel and the Python environment are files in S3, and credentials
come from the roles of the machines. `pip install 'icedb-dagster[aws]'` brings the clients of Dagster Pipes.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
import json
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
from icedb_dagster.compute.spark_places import Context, SparkPlace, refuse_secrets, spark_options

__all__ = ["EmrServerlessSpark", "EmrSpark"]

# The folder of a container in which Spark unpacks the environment.
UNPACKED = "environment"
PYTHON = f"./{UNPACKED}/bin/python"
# botocore asks every half minute and gives up after half an hour, and with it the run; a program may take a week.
ASKED_MAX = 7 * 24 * 60 * 2


class _AwsSpark(SparkPlace):
    """A service of AWS that starts a program on one request."""

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
        """Our part of the request."""

    @abstractmethod
    def _environment_conf(self, archive: str) -> dict[str, str]:
        """The properties by which driver and executors unpack the environment and use its Python."""

    @abstractmethod
    def _start(self, request: Mapping[str, Any]) -> str:
        """Send the request; returns what was started, in words."""

    def request(self, program: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
        """The parameters of the call that starts a program: ours, and `overrides` over them. Raises InvalidOption.

        They are checked by botocore's model of the service, without network and credentials.
        """
        place = type(self).__name__
        refuse_secrets(place, arguments=arguments)
        packed = self._environment_conf(f"{self.environment}#{UNPACKED}") if self.environment else {}
        options = spark_options(place, {**packed, **self.conf}, self.py_files)
        entry_point = self._entry_point(program)
        name = entry_point.rpartition("/")[2].removesuffix(".py")
        request = _merged(self._request(name, entry_point, [*arguments], options), self.overrides)
        operation = botocore.session.get_session().get_service_model(self.service).operation_model(self.operation)
        # A request also has a token, by which AWS knows one that is repeated: botocore makes it when it sends.
        sent = {**dict.fromkeys(operation.idempotent_members, "token"), **request}
        report = ParamValidator().validate(sent, operation.input_shape)  # type: ignore[arg-type]
        if report.has_errors():
            problems = "; ".join(report.generate_report().splitlines())
            raise InvalidOption(
                f"{place}: {self.operation} would refuse the request: {problems}. Correct the field, or overrides."
            )
        return request

    def preview(self, program: str, arguments: Sequence[str] = ()) -> str:
        """The request as JSON."""
        return json.dumps(self.request(program, arguments), indent=2)

    def submit(self, program: str, arguments: Sequence[str] = ()) -> str:
        """Send the request, and do not wait for the program. Raises InvalidOption also when AWS refuses it."""
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
                f"{type(self).__name__}: {program!r} is on this machine, and AWS takes programs from S3. Copy it there "
                "and give its s3:// address."
            )
        if not self.programs.startswith("s3://"):
            raise InvalidOption(
                f"{type(self).__name__}: programs is {self.programs!r}; give the s3:// address of the folder that has "
                "the files of spark_jobs."
            )
        return f"{self.programs.rstrip('/')}/{program}.py"


class EmrSpark(_AwsSpark):
    """A cluster of EMR that is started for the program, and ends with it.

    `programs`: the folder in S3 with the files of `spark_jobs`. `environment`: a packed virtual environment in S3.
    `py_files`: archives of Python modules in S3. `messages_bucket`: where the program puts its messages for Dagster;
    its role must be allowed to write there. `release_label`, `instance_type`, `instance_count`, `service_role`,
    `instance_role`, `subnet_id`, `log_uri`: as EMR calls them. `conf`: Spark's properties. `region`: without it, the
    usual AWS chain decides. `overrides`: parameters of RunJobFlow that are put over ours.
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
        """Run a program on a cluster of its own, through `dagster_aws.pipes.PipesEMRClient`.

        Raises InvalidOption, and botocore's errors: its WaiterError when the program failed.
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
        """The parameters of RunJobFlow. Raises InvalidOption."""
        request = super().request(program, arguments)
        if any(c.get("Classification") == "spark-defaults" for c in request.get("Configurations", ())):
            # dagster-aws writes its variables there, and loses them when somebody else's are there already.
            raise InvalidOption("EmrSpark: overrides has Configurations of spark-defaults; give them as conf.")
        return request

    def client(self) -> Any:
        """A client of EMR that waits for a cluster for as long as a week."""
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
            "ActionOnFailure": "TERMINATE_CLUSTER",  # else the cluster ends as if all was well
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
    """An application of EMR Serverless that is there already.

    `application_id` and `execution_role_arn`: the application, and the role that the program has. The other fields as
    for `EmrSpark`; `overrides` are parameters of StartJobRun. Its messages for Dagster are lines of its output, which
    the request sends to CloudWatch.
    """

    service: ClassVar[str] = "emr-serverless"
    operation: ClassVar[str] = "StartJobRun"

    application_id: str
    execution_role_arn: str

    def run(
        self, context: Context, program: str, arguments: Sequence[str] = (), *, extras: Mapping[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Run a program in the application, through `dagster_aws.pipes.PipesEMRServerlessClient`.

        Raises InvalidOption, botocore's errors, and RuntimeError when the program failed.
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
        """A client of EMR Serverless."""
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
            if any(c.isspace() or c in "'\"\\" for c in option):  # they are one text, without a rule for quoting
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


class _PatientClient:
    """A boto3 client whose waiters do not give up before the program's end."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_waiter(self, name: str) -> Any:
        """As boto3's, but for how long it waits."""
        waiter = self._client.get_waiter(name)
        waiter.config.max_attempts = ASKED_MAX
        return waiter


def _dagster_aws_pipes() -> Any:
    """Only what runs on AWS needs the package."""
    try:
        from dagster_aws import pipes
    except ImportError:
        raise InvalidOption("EMR needs dagster-aws. Install it with: pip install 'icedb-dagster[aws]'") from None
    return pipes


def _merged(ours: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged at every level; of all else, what overrides says is taken."""
    merged = dict(ours)
    for name, value in overrides.items():
        known = merged.get(name)
        merged[name] = _merged(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged
