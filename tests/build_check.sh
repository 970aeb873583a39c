#!/bin/sh
# Checks how the build finds CUDA: an nvcc of CUDA 13 on the PATH or in the environment of .ci/cuda,
# no other version, else the packages; and that `make demo` builds the GPU backend where a GPU is.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# compiler HOME RELEASE: an nvcc that prints this release.
compiler() {
    mkdir -p "$1/bin"
    printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.1"\n' "$2" "$2" >"$1/bin/nvcc"
    chmod +x "$1/bin/nvcc"
}

# found PATH WANTED: what .ci/cuda finds with this PATH in front, without an installed CUDA.
found() {
    sed 's|/usr/local/cuda|/nonexistent|g; s|/opt/cuda|/nonexistent|g' .ci/cuda >"$dir/find"
    got=$(PATH="$1:/usr/bin:/bin" sh "$dir/find" find "$dir/env")
    [ "$got" = "$2" ] || { echo "PATH=$1: found '$got', expected '$2'"; exit 1; }
}
compiler "$dir/new" 13.0
compiler "$dir/old" 12.8
found "$dir/new/bin" "$dir/new"
found "$dir/old/bin" ""
compiler "$dir/env/lib/python3.12/site-packages/nvidia/cu13" 13.0
found "$dir/old/bin" "$dir/env/lib/python3.12/site-packages/nvidia/cu13"

make=${MAKE:-make}
# plan ARGUMENTS...: the commands that make would run, in a build directory of its own.
plan() {
    env -u MAKEFLAGS -u MAKELEVEL "$make" -n --no-print-directory BUILD="$dir/build" "$@" 2>/dev/null || :
}
plan cuda CUDA_HOME= | grep -q '^\.ci/cuda get build/cuda-env' || { echo "make cuda gets no compiler"; exit 1; }
plan cuda CUDA_HOME="$dir/new" | grep -q "^$dir/new/bin/nvcc" || { echo "make cuda uses another nvcc"; exit 1; }
plan cuda CUDA_HOME="$dir/new" | grep -q '^\.ci/deps g++' || { echo "make cuda does not look for g++"; exit 1; }
# Without g++, and without root or apt, .ci/deps names the package.
mkdir "$dir/few"
for program in sh cc gcc pkg-config id env; do ln -s "$(command -v $program)" "$dir/few"; done
PATH="$dir/few" sh .ci/deps g++ 2>"$dir/err" && { echo ".ci/deps: g++ is not missed"; exit 1; }
grep -q 'install these packages: .* g++$' "$dir/err" || { echo ".ci/deps:"; cat "$dir/err"; exit 1; }
plan demo GPU=/dev/nvidiactl CUDA_HOME="$dir/new" | grep -q 'nvcc' || { echo "make demo leaves out the GPU"; exit 1; }
! plan demo GPU= CUDA_HOME="$dir/new" | grep -q 'nvcc' || { echo "make demo builds for a GPU that is not here"; exit 1; }
echo "build: ok"
