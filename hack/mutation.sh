#!/usr/bin/env bash
# Changes the rules of a package one by one, in a copy, and lists the changes that no test of the package notices.
# hack/mutation.sh [PACKAGE [FLAGS OF gremlins unleash]]; --dry-run lists what would be changed.
set -euo pipefail
cd "$(dirname "$0")/.."
package=${1:-bundle}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -C hack/mutation -o "$work/gremlins" github.com/go-gremlins/gremlins/cmd/gremlins
mkdir "$work/copy" "$work/bin"
cp -r go.mod go.sum "$package" "$work/copy"
cd "$work/copy"
find . -name 'cost*_test.go' -delete # slow, and no rule depends on them

# What gremlins runs as go. It gets three things wrong: Go counts neither the conditions of cases nor constants as covered,
# so it would leave them out; a change that does not compile, or that vet finds, it would count as noticed by a test; and a
# change that never ends may take all of the memory.
cat >"$work/bin/go" <<EOF
#!/usr/bin/env bash
set -euo pipefail
ulimit -v 8000000
case " \$* " in
*" -coverprofile "*)
	"$(command -v go)" "\$@" -count 1
	profile=\$(sed 's/.* -coverprofile \([^ ]*\) .*/\1/' <<<"\$*")
	awk -F: 'NR == 1; NR > 1 && !seen[\$1]++ { print \$1 ":1.1,1000000.1 1 1" }' "\$profile" >"\$profile.all"
	mv "\$profile.all" "\$profile"
	;;
" test "*)
	"$(command -v go)" build "\${@: -1}" || exit 2
	exec "$(command -v go)" test -vet off -ldflags=-w "\${@:2}"
	;;
*) exec "$(command -v go)" "\$@" ;;
esac
EOF
chmod +x "$work/bin/go"
go test -cover -run "^\$" "./$package/..." >/dev/null # compile it, so that what gremlins takes the time of is the tests

PATH=$work/bin:$PATH nice -n 15 "$work/gremlins" unleash --workers 1 --timeout-coefficient 20 --exclude-files bundletest/ \
	--invert-logical --invert-loopctrl --invert-assignments --invert-bitwise --remove-self-assignments \
	"${@:2}" "./$package"
