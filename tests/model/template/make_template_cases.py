#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
# Writes what transformers renders: cases/<name>/expected.json for each template there and each
# conversation of cases/conversations.json, and the results in cases/expressions.json.
# Needs transformers and jinja2 (the versions used last stand in the files). No model is needed.
import json
import pathlib
import sys

import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

HERE = pathlib.Path(__file__).parent / "cases"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(template, variables):
    values = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False, **TOKENS, **variables}
    try:
        text, spans = _render_with_assistant_indices(
            _compile_jinja_template(template), values.pop("messages"), values.pop("tools"),
            values.pop("documents"), values.pop("add_generation_prompt"), **values)
    except Exception as error:  # whatever a template does wrong
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    result = {"text": text}
    if spans:  # in bytes, as the renderer counts
        result["spans"] = [[len(text[:a].encode()), len(text[:b].encode())] for a, b in spans]
    return result


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main():
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    conversations = json.loads((HERE / "conversations.json").read_text(encoding="utf-8"))
    for path in sorted(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE).glob("*/template.jinja")):
        template = path.read_text(encoding="utf-8")
        results = [{"name": c["name"], **render(template, {k: v for k, v in c.items() if k != "name"})}
                   for c in conversations]
        write(path.parent / "expected.json", {"made with": versions, "results": results})
    path = HERE / "expressions.json"
    cases = json.loads(path.read_text(encoding="utf-8"))
    for case in cases["cases"]:
        for key in ("text", "error", "spans"):
            case.pop(key, None)
        case.update(render(case["template"], case.get("variables", {})))
    cases["made with"] = versions
    path.write_text('{"made with": %s,\n "cases": [\n  %s\n ]}\n' % (
        json.dumps(versions), ",\n  ".join(json.dumps(c, ensure_ascii=False) for c in cases["cases"])),
        encoding="utf-8")


if __name__ == "__main__":
    main()
