#!/bin/sh
# Installs the servers into target/servers (some minutes: llama-cpp-python is compiled), builds the binary, and runs try.py.
set -eu
cd "$(dirname "$0")/../.."
place=target/servers
if [ ! -x "$place/bin/python" ]; then
    python3 -m venv "$place"
fi
"$place/bin/pip" install --quiet numpy gguf 'litellm[proxy]' 'llama-cpp-python[server]'
"$place/bin/python" tests/servers/make_model.py "$place/random.gguf"
cargo build --release -p greenroom-cli
exec "$place/bin/python" tests/servers/try.py target/release/greenroom "$place/random.gguf"
