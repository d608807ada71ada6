#!/bin/sh
# Makes DIR a Wine prefix that runs 64-bit Go console programs, in a fraction of a second and without a display.
#
#   hack/wine/prefix.sh DIR
#   WINEPREFIX=DIR WINEDEBUG=-all wine program.exe
#
# The prefix's C: is DIR/drive_c. Wine's own set-up (wineboot) takes ten seconds and 700 MB; here system32 holds links to
# the libraries that are installed anyway, and the timestamp file says "disable", so that wineboot leaves it alone.
# Running it again changes nothing. Needs the Debian packages wine, wine64 and gcc-mingw-w64-x86-64.
set -eu

if [ $# -ne 1 ]; then
	echo "usage: prefix.sh DIR" >&2
	exit 2
fi
prefix=$1
here=$(cd "$(dirname "$0")" && pwd)
system32=$prefix/drive_c/windows/system32
library=$system32/bcryptprimitives.dll

if ! command -v x86_64-w64-mingw32-gcc >/dev/null; then
	echo "error: x86_64-w64-mingw32-gcc is not installed" >&2
	echo "hint: apt-get install wine wine64 gcc-mingw-w64-x86-64" >&2
	exit 1
fi

builtin=
for directory in "${WINEDLLS:-}" /usr/lib/x86_64-linux-gnu/wine/x86_64-windows /usr/lib64/wine/x86_64-windows \
	/usr/lib/wine/x86_64-windows /opt/wine-stable/lib64/wine/x86_64-windows; do
	if [ -e "$directory/kernel32.dll" ]; then
		builtin=$directory
		break
	fi
done
if [ -z "$builtin" ]; then
	echo "error: Wine's 64-bit libraries were not found" >&2
	echo "hint: set WINEDLLS to the directory that holds kernel32.dll" >&2
	exit 1
fi

mkdir -p "$system32"
printf disable >"$prefix/.update-timestamp"
if [ ! -e "$library" ]; then
	ln -sf "$builtin"/* "$system32/"
	if [ ! -e "$library" ]; then # later Wine brings its own
		x86_64-w64-mingw32-gcc -shared -nostdlib -Wl,-e,DllMain -o "$library.$$" "$here/bcryptprimitives.c" -ladvapi32
		mv "$library.$$" "$library"
	fi
fi
