#!/bin/sh
# Forces answers under the schemas of tests/golden/schemas: few may be refused, and answers without
# warnings must be valid (package jsonschema). BUILD is the build directory.
set -eu
. tests/lib/serve.sh

need_python structured openai==3.52.0 jsonschema==4.26.0
"$python" tests/clients/schema_table.py "${BUILD:-build}/cinch" examples/tiny-reasoner
