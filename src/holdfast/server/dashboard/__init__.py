"""The live dashboard: a page of plain ES modules that uses the API as any other program does."""
