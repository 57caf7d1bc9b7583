# Functions for the other scripts (sourced, not run): messages, the project's cache, uv.
die() {
    echo "bamboo: $*" >&2
    exit 1
}

# only_arguments USAGE KNOWN... -- ARGUMENTS...: exits with code 2 at the first unknown argument.
only_arguments() {
    local usage=$1 known=' '
    shift
    while [ "$1" != -- ]; do
        known+="$1 "
        shift
    done
    shift
    while [ $# -gt 0 ]; do
        case $known in *" $1 "*) ;; *)
            echo "bamboo: the argument '$1' is not known; usage: $usage" >&2
            exit 2
            ;;
        esac
        shift
    done
}

# side_by_side N TASK...: runs these functions, N at the same time, and none after one has failed. Prints a line when
# a task ends; at the end their outputs and, of each that failed, the name and the last 30 lines. Fails if one has failed.
side_by_side() {
    local lanes=$1 folder lane task failed=0
    shift
    folder=$(mktemp -d)
    for ((lane = 0; lane < lanes; lane++)); do
        take_tasks "$folder" "$@" &
    done
    wait
    for task in "$@"; do
        [ ! -e "$folder/$task" ] || { echo "--> ${task//_/ }" && cat "$folder/$task/output"; }
    done
    for task in "$@"; do
        [ -e "$folder/failed-$task" ] || continue
        failed=1
        echo "==> ${task//_/ } failed; the last lines of its output:"
        tail -n 30 "$folder/$task/output"
    done
    rm -rf "$folder"
    return "$failed"
}

# take_tasks FOLDER TASK...: runs each task that nobody has taken yet.
take_tasks() {
    local folder=$1 task start
    shift
    for task in "$@"; do
        ! compgen -G "$folder/failed-*" >/dev/null || return 0
        mkdir "$folder/$task" 2>/dev/null || continue
        start=$SECONDS
        "$task" >"$folder/$task/output" 2>&1 || touch "$folder/failed-$task"
        echo "--> ${task//_/ }: $((SECONDS - start)) s"
    done
}

# First, because the bash of other systems may lack features used below.
case $OSTYPE in
linux*) ;;
*) die "this machine runs $OSTYPE and Linux is needed; use one, or a container or virtual machine with it." ;;
esac
shopt -s inherit_errexit

cache=${XDG_CACHE_HOME:-$HOME/.cache}/bamboo

# Prints the first usable Python 3.11 or newer.
find_python() {
    local candidate
    for candidate in ${BAMBOO_PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        "$candidate" -c 'import sys; sys.version_info < (3, 11) and sys.exit(1); print(sys.executable)' \
            2>/dev/null && return
    done
    die "no Python 3.11 or newer was found; install one, or name it in BAMBOO_PYTHON."
}

# need_space DIRECTORY GIB: fails if the disk that holds DIRECTORY has less free space.
need_space() {
    local free_kib
    mkdir -p "$1" || die "the directory $1 cannot be made; check its owner and the free space."
    free_kib=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
    [ "$free_kib" -ge $(($2 * 1024 * 1024)) ] ||
        die "the disk that holds $1 has $((free_kib / 1024 / 1024)) GiB free and $2 GiB are needed;" \
            "free some space and try again."
}

# run_or_explain WHAT COMMAND...: runs a command; on failure, one sentence names the likely cause.
run_or_explain() {
    local what=$1 log
    shift
    log=$(mktemp)
    # The log is for `explain`; users do not see uv's line for each package.
    if "$@" 2> >(tee "$log" | grep -v '^ [-+~] ' >&2); then
        rm -f "$log"
        return
    fi
    sleep 0.1 # so that tee can write its last line
    explain "$what" "$log"
}

explain() {
    local text
    text=$(cat "$2")
    rm -f "$2"
    case $text in
    *"No space left"* | *"os error 28"* | *"Errno 28"* | *"Disk quota"*)
        die "$1 failed because the disk is full; free some space and try again."
        ;;
    *dns\ error* | *onnection* | *imed\ out* | *imeout* | *unreachable* | *resolve* | *etwork*)
        die "$1 failed because the package index did not answer; check the network (or the index in" \
            "PIP_INDEX_URL) and try again."
        ;;
    esac
    die "$1 failed; its own message is above."
}

# uv has its own variables; take over those of pip.
export_uv_settings() {
    local index
    index=${PIP_INDEX_URL:-$("$(find_python)" -m pip config get global.index-url 2>/dev/null || true)}
    [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
    [ -z "${PIP_EXTRA_INDEX_URL:-}" ] || export UV_INDEX=${UV_INDEX:-$PIP_EXTRA_INDEX_URL}
    [ ! -d "${PIP_FIND_LINKS:-}" ] || export UV_FIND_LINKS=${UV_FIND_LINKS:-$PIP_FIND_LINKS}
    [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
    export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-${PIP_DEFAULT_TIMEOUT:-120}}
}

# Prints the path of the pinned uv; installs it into the cache if needed.
bootstrap_uv() {
    local version python home
    version=$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/uv.txt)
    home=$cache/uv-$version
    if ! [ -x "$home/bin/uv" ]; then
        python=$(find_python)
        "$python" -m pip --version >/dev/null 2>&1 ||
            die "$python has no pip; install it (Debian: apt-get install python3-pip) and try again."
        need_space "$cache" 1
        rm -rf "$home.new.$$"
        run_or_explain "installing uv" "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
            --require-hashes --target "$home.new.$$" -r requirements/uv.txt >&2
        mv -T "$home.new.$$" "$home" 2>/dev/null || rm -rf "$home.new.$$" # another run may have installed it
    fi
    echo "$home/bin/uv"
}
