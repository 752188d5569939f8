"""Runs commands of the AWS CLI in one process. Standard input has a JSON list of arguments on each
line; for each, a line of JSON with the exit code and the output is printed."""

import contextlib
import io
import json
import sys

from awscli.clidriver import create_clidriver

driver = create_clidriver()
for line in sys.stdin:
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = driver.main(json.loads(line))
    print(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}), flush=True)
