"""Databases as Spark's JDBC knows them: connections of the driver, statements, and errors in one sentence.

Spark finds the drivers, also those in jars that were added, opens connections, and knows how a database
quotes names: this asks it for that, through its JVM. What is written, and in which order, is left to `jdbc`.
The rule: no error holds a password, or a URL with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, cast
from urllib.parse import unquote

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines.declaration import Declaration, Sink
from leveret.spark.pipelines.declaration_checks import as_options
from leveret.spark.pipelines.errors import BadPipeline

_PACKAGES: Final = {
    "db2": "com.ibm.db2:jcc",
    "h2": "com.h2database:h2",
    "mariadb": "org.mariadb.jdbc:mariadb-java-client",
    "mysql": "com.mysql:mysql-connector-j",
    "oracle": "com.oracle.database.jdbc:ojdbc11",
    "postgresql": "org.postgresql:postgresql",
    "sqlite": "org.xerial:sqlite-jdbc",
    "sqlserver": "com.microsoft.sqlserver:mssql-jdbc",
}
"""Where the drivers of databases are, by the word behind `jdbc:` in a URL."""
_SECRET: Final = re.compile(r"password|pwd|secret|token", re.IGNORECASE)
_SECRET_IN_URL: Final = re.compile(r"(?:password|pwd|secret|token)=([^&;]+)|[:/]([^:/@]+)@", re.IGNORECASE)


class DatabaseFailed(SparkSideError):
    """It was not reached, or it refused: what it said, without what is secret."""


class Database:
    """That of a sink: `with Database(spark, sink, declared).connected() as connection: ...`."""

    def __init__(self, spark: SparkSession, sink: Sink, declared: Declaration) -> None:
        self.options = as_options(sink.options)
        self._sink = sink.name
        self._gateway = cast(Any, spark.sparkContext._gateway)
        packages = self._gateway.jvm.org.apache.spark.sql
        self._jdbc = packages.execution.datasources.jdbc
        self._dialect = packages.jdbc.JdbcDialects.get(self.options["url"])
        try:
            self._settings = self._settings_for(self.options["dbtable"])
        except Py4JJavaError:
            raise _no_driver(declared, sink) from None

    @property
    def kind(self) -> str:
        """`postgresql`"""
        return _kind_of(self.options["url"])

    @property
    def most_writers(self) -> int | None:
        """How many tasks may write at the same time, where the options say so."""
        found = self._settings.numPartitions()
        return int(found.get()) if found.isDefined() else None

    def quoted(self, name: str) -> str:
        return str(self._dialect.quoteIdentifier(name))

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Each statement is a transaction of its own, but for those within `Connection.transaction`."""
        with self.told():
            java = self._dialect.createConnectionFactory(self._settings).apply(-1)
            try:
                yield Connection(self, java)
            finally:
                with suppress(Py4JJavaError):  # it is broken: what it did is committed, or is not
                    java.close()

    @contextmanager
    def told(self) -> Iterator[None]:
        """What the database says becomes one sentence; what somebody else says goes by."""
        try:
            yield
        except (Py4JJavaError, CapturedException) as error:
            said = self._said(error)
            if said is None:
                raise
            hint = "check the database, and the options of the sink; the batch is written when it runs again"
            what = f"sink '{self._sink}' can't write to its database: {said}"
            raise DatabaseFailed(what, hint=hint) from None

    def _said(self, error: Py4JJavaError | CapturedException) -> str | None:
        cause = error.java_exception if isinstance(error, Py4JJavaError) else error._origin
        while cause is not None and not is_instance_of(self._gateway, cause, "java.sql.SQLException"):
            cause = cause.getCause()
        if cause is None:
            return None
        told = (cause.getNextException() or cause).getMessage() or cause.getClass().getName()
        return without_secrets(told.strip().splitlines()[0], self.options)

    def _settings_for(self, table: str) -> Any:
        """The options of Spark's own writer, for a table."""
        options = {**self.options, "dbtable": table}
        return self._jdbc.JdbcOptionsInWrite(self._gateway.jvm.PythonUtils.toScalaMap(options))

    def _has(self, java: Any, table: str) -> bool:
        return bool(self._jdbc.JdbcUtils.tableExists(java, self._settings_for(table)))

    def _names_of(self, table: str) -> str:
        return str(self._dialect.getSchemaQuery(table))

    @property
    def _timeout_s(self) -> int:
        return int(self._settings.queryTimeout())


class Connection:
    """Of the driver, not of the tasks. Tables are named as SQL names them, values take the place of `?`."""

    def __init__(self, database: Database, java: Any) -> None:
        self._database = database
        self._java = java

    def run(self, statement: str, *values: str | int) -> int:
        """The number of rows that it was about."""
        with self._prepared(statement, *values) as prepared:
            return int(prepared.executeUpdate())

    def first(self, query: str, *values: str | int) -> tuple[Any, ...] | None:
        """The first row of an answer, if there is one."""
        with self._prepared(query, *values) as prepared:
            found = prepared.executeQuery()
            count = found.getMetaData().getColumnCount()
            return tuple(found.getObject(index + 1) for index in range(count)) if found.next() else None

    def columns(self, table: str) -> list[str]:
        with self._prepared(self._database._names_of(table)) as prepared:
            described = prepared.executeQuery().getMetaData()
            return [described.getColumnLabel(index + 1) for index in range(described.getColumnCount())]

    def has(self, table: str) -> bool:
        return self._database._has(self._java, table)

    def drop(self, table: str) -> None:
        """If it is there."""
        if self.has(table):
            self.run(f"DROP TABLE {table}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Committed at its end; whatever is raised within undoes it."""
        if not self._java.getMetaData().supportsTransactions():
            raise DatabaseFailed(
                "the database has no transactions", hint="each batch needs one: take another"
            )
        self._java.setAutoCommit(False)
        try:
            yield
            self._java.commit()
        except BaseException:
            with suppress(Py4JJavaError):  # it is broken: then the database has undone it
                self._java.rollback()
            raise
        self._java.setAutoCommit(True)

    @contextmanager
    def _prepared(self, statement: str, *values: str | int) -> Iterator[Any]:
        prepared = self._java.prepareStatement(statement)
        try:
            prepared.setQueryTimeout(self._database._timeout_s)
            for index, value in enumerate(values):
                prepared.setObject(index + 1, value)
            yield prepared
        finally:
            with suppress(Py4JJavaError):  # the connection is broken, and it with that
                prepared.close()


def without_secrets(text: str, options: Mapping[str, str]) -> str:
    """As it is, but for what is a password in the options, or in their URL."""
    secrets = [value for name, value in options.items() if _SECRET.search(name)]
    secrets += [found[1] or found[2] for found in _SECRET_IN_URL.finditer(options["url"])]
    for secret in sorted({*secrets, *map(unquote, secrets)}, key=len, reverse=True):
        text = text.replace(secret, "***") if secret else text
    return text


def _no_driver(declared: Declaration, sink: Sink) -> BadPipeline:
    """A class that Java does not find, or no driver that takes the URL."""
    kind = _kind_of(str(sink.options["url"]))
    driver = sink.options.get("driver")
    problem = f"needs the class {driver}, which is not there" if driver else f"needs a driver for jdbc:{kind}"
    package = f"{_PACKAGES.get(kind, '<group>:<name>')}:<version>"
    hint = f"under [spark], packages = ['{package}'] or jars = ['<its jar>']"
    if not driver:
        hint += ", and the name of its class in the sink's options, as driver"
    return declared.wrong(("sinks", declared.sinks.index(sink), "options"), problem, hint=hint)


def _kind_of(url: str) -> str:
    return url.partition(":")[2].partition(":")[0]
