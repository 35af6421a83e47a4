"""Java missing, broken or too old: said in a sentence before Spark is started."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import leveret.spark
from leveret.spark.errors import NoJava
from leveret.spark.java import check_java

pytestmark = pytest.mark.real


def pretended(directory: Path, script: str) -> dict[str, str]:
    binary = directory / "bin"
    binary.mkdir()
    java = binary / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return {"JAVA_HOME": str(directory), "PATH": "/usr/bin:/bin"}


def test_a_java_that_is_new_enough_is_taken(tmp_path):
    assert check_java(pretended(tmp_path, """echo 'openjdk version "21.0.2" 2024-01-16' >&2""")) == 21


def test_a_java_that_is_too_old_is_named_with_what_is_needed(tmp_path):
    with pytest.raises(NoJava, match=r"Spark needs Java 17, and .* is Java 8 \(install Java 17"):
        check_java(pretended(tmp_path, """echo 'java version "1.8.0_292"' >&2"""))


def test_a_java_that_does_not_run_is_no_java(tmp_path):
    with pytest.raises(NoJava, match="the one of JAVA_HOME does not run"):
        check_java(pretended(tmp_path, "exit 1"))
    with pytest.raises(NoJava, match="the one of JAVA_HOME does not run"):
        check_java({"JAVA_HOME": str(tmp_path / "nowhere")})


def test_no_java_at_all_is_a_sentence(tmp_path):
    with pytest.raises(NoJava, match="there is none on the PATH"):
        check_java({"PATH": str(tmp_path)})


def test_a_session_is_refused_before_spark_is_started(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda builder: pytest.fail("Spark was started"))
    with pytest.raises(NoJava, match="the one of JAVA_HOME does not run"):
        leveret.spark.session()
