# SPDX-License-Identifier: LGPL-2.1-or-later
# labels: python
"""graph/job.schema.json against the cases of the job reader: every valid job
passes, and every invalid one whose folder has a file "schema" is refused."""
import json
import pathlib
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: python3 has no module jsonschema", file=sys.stderr)
    sys.exit(77)


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main():
    tests = pathlib.Path(__file__).resolve().parent
    schema = load(tests.parent.parent / "graph" / "job.schema.json")
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    failures, valid, refused = [], 0, 0
    for case in sorted((tests / "jobs" / "valid").iterdir()):
        valid += 1
        for error in validator.iter_errors(load(case / "job.json")):
            failures.append(f"valid/{case.name}: {error.json_path}: {error.message}")
    for case in sorted((tests / "jobs" / "invalid").iterdir()):
        if not (case / "schema").exists():
            continue
        refused += 1
        if validator.is_valid(load(case / "job.json")):
            failures.append(f"invalid/{case.name}: the schema accepts it")
    if valid < 8 or refused < 30:
        failures.append(f"only {valid} valid and {refused} invalid cases were found")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


sys.exit(main())
