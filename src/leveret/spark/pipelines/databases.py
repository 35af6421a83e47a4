"""Databases through Spark's JDBC: connections of the Spark driver, statements, and errors in one sentence.

Spark's JVM finds the database drivers, also in added jars, opens the connections and quotes names. `jdbc`
decides what is written, and in which order. The rule: no error holds a password, or a URL with one.
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
"""Maven coordinates of the drivers, by the word after `jdbc:` in a URL."""
_SECRET: Final = re.compile(r"password|pwd|secret|token", re.IGNORECASE)
_SECRET_IN_URL: Final = re.compile(r"(?:password|pwd|secret|token)=([^&;]+)|[:/]([^:/@]+)@", re.IGNORECASE)


class DatabaseFailed(SparkSideError):
    """The database was not reached, or refused a statement. The message holds no secrets."""


class Database:
    """The database of a sink: `with Database(spark, sink, declared).connected() as connection: ...`."""

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
        """The word after `jdbc:` in the URL, like `postgresql`."""
        return _kind_of(self.options["url"])

    @property
    def most_writers(self) -> int | None:
        """How many tasks may write at the same time (option `numPartitions`), or None."""
        option = self._settings.numPartitions()
        return int(option.get()) if option.isDefined() else None

    def quoted(self, name: str) -> str:
        return str(self._dialect.quoteIdentifier(name))

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Open a connection. Each statement outside `Connection.transaction` is a transaction of its own."""
        with self.plain_errors():
            java = self._dialect.createConnectionFactory(self._settings).apply(-1)
            try:
                yield Connection(self, java)
            finally:
                # a broken connection has committed its statements, or not; closing it changes nothing
                with suppress(Py4JJavaError):
                    java.close()

    @contextmanager
    def plain_errors(self) -> Iterator[None]:
        """Raise errors of the database as one sentence. Other errors pass unchanged."""
        try:
            yield
        except (Py4JJavaError, CapturedException) as error:
            message = self._database_message(error)
            if message is None:
                raise
            hint = "check the database, and the options of the sink; the batch is written when it runs again"
            problem = f"sink '{self._sink}' can't write to its database: {message}"
            raise DatabaseFailed(problem, hint=hint) from None

    def _database_message(self, error: Py4JJavaError | CapturedException) -> str | None:
        """Return the first line of the `SQLException` among the causes of an error, or None."""
        cause = error.java_exception if isinstance(error, Py4JJavaError) else error._origin
        while cause is not None and not is_instance_of(self._gateway, cause, "java.sql.SQLException"):
            cause = cause.getCause()
        if cause is None:
            return None
        message = (cause.getNextException() or cause).getMessage() or cause.getClass().getName()
        return without_secrets(message.strip().splitlines()[0], self.options)

    def _settings_for(self, table: str) -> Any:
        """Return the options of Spark's JDBC writer for a table."""
        options = {**self.options, "dbtable": table}
        return self._jdbc.JdbcOptionsInWrite(self._gateway.jvm.PythonUtils.toScalaMap(options))

    def _table_exists(self, java: Any, table: str) -> bool:
        return bool(self._jdbc.JdbcUtils.tableExists(java, self._settings_for(table)))

    def _schema_query(self, table: str) -> str:
        return str(self._dialect.getSchemaQuery(table))


class Connection:
    """A connection of the Spark driver, not of its tasks. Values replace the `?` of a statement."""

    def __init__(self, database: Database, java: Any) -> None:
        self._database = database
        self._java = java

    def run(self, statement: str, *values: str | int) -> int:
        """Execute a statement and return the number of rows that it changed."""
        with self._prepared(statement, *values) as prepared:
            return int(prepared.executeUpdate())

    def first(self, query: str, *values: str | int) -> tuple[Any, ...] | None:
        """Return the first row of a query's result, or None."""
        with self._prepared(query, *values) as prepared:
            result = prepared.executeQuery()
            count = result.getMetaData().getColumnCount()
            return tuple(result.getObject(index + 1) for index in range(count)) if result.next() else None

    def columns(self, table: str) -> list[str]:
        with self._prepared(self._database._schema_query(table)) as prepared:
            described = prepared.executeQuery().getMetaData()
            return [described.getColumnLabel(index + 1) for index in range(described.getColumnCount())]

    def has(self, table: str) -> bool:
        return self._database._table_exists(self._java, table)

    def drop(self, table: str) -> None:
        """Drop a table if it exists."""
        if self.has(table):
            self.run(f"DROP TABLE {table}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end of the block; roll back if the block raises."""
        if not self._java.getMetaData().supportsTransactions():
            raise DatabaseFailed(
                "the database has no transactions", hint="each batch needs one: take another"
            )
        self._java.setAutoCommit(False)
        try:
            yield
            self._java.commit()
        except BaseException:
            # if the connection is broken, the database rolls back by itself
            with suppress(Py4JJavaError):
                self._java.rollback()
            raise
        self._java.setAutoCommit(True)

    @contextmanager
    def _prepared(self, statement: str, *values: str | int) -> Iterator[Any]:
        prepared = self._java.prepareStatement(statement)
        try:
            prepared.setQueryTimeout(int(self._database._settings.queryTimeout()))
            for index, value in enumerate(values):
                prepared.setObject(index + 1, value)
            yield prepared
        finally:
            # a broken connection has closed the statement already
            with suppress(Py4JJavaError):
                prepared.close()


def without_secrets(text: str, options: Mapping[str, str]) -> str:
    """Return the text with `***` in place of passwords from the options or their URL."""
    secrets = [value for name, value in options.items() if _SECRET.search(name)]
    secrets += [match[1] or match[2] for match in _SECRET_IN_URL.finditer(options["url"])]
    for secret in sorted({*secrets, *map(unquote, secrets)}, key=len, reverse=True):
        text = text.replace(secret, "***") if secret else text
    return text


def _no_driver(declared: Declaration, sink: Sink) -> BadPipeline:
    """Return the error for a missing driver class, or for a URL that no driver accepts."""
    kind = _kind_of(str(sink.options["url"]))
    driver = sink.options.get("driver")
    package = f"{_PACKAGES.get(kind, '<group>:<name>')}:<version>"
    hint = f"under [spark], packages = ['{package}'] or jars = ['<its jar>']"
    problem = f"needs the class {driver}, which Java can't find"
    if not driver:
        problem = f"needs a driver for jdbc:{kind}"
        hint += ", and the name of its class in the sink's options, as driver"
    return declared.wrong(("sinks", declared.sinks.index(sink), "options"), problem, hint=hint)


def _kind_of(url: str) -> str:
    return url.partition(":")[2].partition(":")[0]
