"""The engine for many machines: PostgreSQL through asyncpg."""

from holdfast.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
